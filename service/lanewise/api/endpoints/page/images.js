// Images in messages: what requests say of them.

export function imagePart({ url }) {
  return { type: "image_url", image_url: { url } };
}

/** The content of a message: its images, then its text. */
export function withImages(text, images = []) {
  if (!images.length) return text;
  return [...images.map(imagePart), ...(text.trim() ? [{ type: "text", text }] : [])];
}
