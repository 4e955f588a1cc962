// The text of a PDF file, read by pdf.js, which comes with the first such file.

const READING = { disableFontFace: true, isEvalSupported: false, useWasm: false, verbosity: 0 };

/** Throws an Error that says why there is no text; ``most`` is how many characters are read. */
export async function pdfText(data, most) {
  // Beside the page, not in a worker: its policy lets no script begin one.
  const [{ getDocument }] = await Promise.all([import("./vendor/pdf.js"), import("./vendor/pdf.worker.js")]);
  const task = getDocument({ data, ...READING });
  try {
    const file = await task.promise;
    const pages = [];
    for (let number = 1, length = 0; number <= file.numPages; number += 1) {
      const page = await file.getPage(number);
      const { items } = await page.getTextContent();
      pages.push(items.map(({ str, hasEOL }) => `${str}${hasEOL ? "\n" : ""}`).join("").trim());
      page.cleanup();
      length += pages.at(-1).length;
      if (length > most) throw new Error(`it has more than ${most.toLocaleString("en")} characters of text`);
    }
    const text = pages.join("\n\n").trim();
    if (!text) throw new Error("it holds no text, perhaps only pictures of pages");
    return text;
  } catch (error) {
    if (error.name === "PasswordException") throw new Error("it wants a password");
    if (error.name === "InvalidPDFException") throw new Error("it is no PDF file that can be read");
    throw error;
  } finally {
    await task.destroy();
  }
}
