// Files that go with the next message: read here, as text or as images, listed with size and tokens before they are sent.

import { post } from "./api.js";
import { fenced } from "./exchange.js";
import { imagePart } from "./images.js";

const MAX_BYTES = 1_000_000; // of text
const MAX_PDF_BYTES = 20_000_000;
const MAX_IMAGE_BYTES = 50_000_000; // the server says what it reads
const UNITS = [[1_000_000, "MB"], [1000, "kB"], [1, "bytes"]];

export class Attachments {
  /** ``list`` shows them; ``refused`` is told why a file is not taken; ``sees`` is whether the model reads images. */
  constructor(list, refused, sees) {
    this.list = list;
    this.refused = refused;
    this.sees = sees;
    this.files = [];
  }

  get isEmpty() {
    return this.files.length === 0;
  }

  async take(files) {
    this.refused("");
    for (const file of files) {
      try {
        const isImage = file.type.startsWith("image/") && file.type !== "image/svg+xml";
        const read = isImage ? { url: await this.#imageOf(file) } : { text: await textOf(file) };
        this.#add({ name: file.name || "image", size: file.size, ...read });
      } catch (error) {
        this.refused(`${file.name} is not attached: ${error.message}`);
      }
    }
  }

  clear() {
    this.files = [];
    this.list.replaceChildren();
    this.list.hidden = true;
  }

  /** A message with the files of text after it, each as a block of code. */
  with(text) {
    return [text.trim() && text, ...this.files.filter((file) => file.text).map(blockOf)].filter(Boolean).join("\n\n");
  }

  /** The images that go before it, each with its name and as a data: URL. */
  get images() {
    return this.files.filter((file) => file.url).map(({ name, url }) => ({ name, url }));
  }

  async #imageOf(file) {
    if (!this.sees()) throw new Error("this model reads text only");
    if (file.size > MAX_IMAGE_BYTES) throw new Error(`it has ${sizeOf(file.size)}, at most ${sizeOf(MAX_IMAGE_BYTES)} are read`);
    const reader = new FileReader();
    return new Promise((resolve, reject) => {
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    });
  }

  #add(file) {
    this.files.push(file);
    const row = document.createElement("li");
    const said = document.createElement("span");
    said.textContent = `${file.name}, ${sizeOf(file.size)}, counting tokens…`;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "small";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    remove.addEventListener("click", () => {
      this.files = this.files.filter((one) => one !== file);
      row.remove();
      this.list.hidden = this.isEmpty;
    });
    row.append(said, remove);
    this.list.append(row);
    this.list.hidden = false;
    const counted = file.url
      ? { messages: [{ role: "user", content: [imagePart(file)] }], add_generation_prompt: false }
      : { content: blockOf(file) };
    post("tokenize", counted).then(
      ({ tokens }) => (said.textContent = `${file.name}, ${sizeOf(file.size)}, ${tokens.length} tokens`),
      (error) => (said.textContent = `${file.name}, ${sizeOf(file.size)}, tokens not counted: ${error.message}`),
    );
  }
}

async function textOf(file) {
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(file.name);
  const most = isPdf ? MAX_PDF_BYTES : MAX_BYTES;
  if (file.size > most) throw new Error(`it has ${sizeOf(file.size)}, at most ${sizeOf(most)} are read`);
  if (isPdf) {
    const { pdfText } = await import("./pdf.js");
    return pdfText(await file.arrayBuffer(), MAX_BYTES);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("it is not text in UTF-8; text, code, CSV and PDF are read");
  }
  if (text.includes("\0")) throw new Error("it is not text; text, code, CSV and PDF are read");
  if (!text.trim()) throw new Error("it is empty");
  return text.replaceAll("\r\n", "\n");
}

function blockOf({ name, text }) {
  const language = /\.(?!pdf$)(\w+)$/i.exec(name)?.[1] ?? ""; // what is read of a PDF is text
  return `${name}:\n${fenced(text, language)}`;
}

function sizeOf(bytes) {
  const [unit, name] = UNITS.find(([least]) => bytes >= least) ?? UNITS.at(-1);
  return `${Math.round((bytes / unit) * 10) / 10} ${name}`;
}
