// Markdown of an answer as elements. The libraries only read it: what is shown is built here, element by
// element, of the few kinds that Markdown knows, and every text is set as text. HTML in it stays text.

import { copy } from "./copy.js";
import { findFormulas, formulaElement } from "./mathematics.js";
import hljs from "./vendor/highlight.js";
import MarkdownIt from "./vendor/markdown-it.js";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
findFormulas(parser);

const TAGS = new Set(["p", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s"]);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MOST_COLOURED = 20_000; // characters of code: colouring more holds up the page
const CONTROLS = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/; // turn around the text that follows
const TASK = /^\[([ xX])\] /;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** An element that shows a Markdown text, also one that grows: blocks that stay the same are left alone. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  show(text) {
    const env = {};
    const blocks = blocksOf(parser.parse(text, env));
    const lines = text.split(/\r\n?|\n/);
    // A link defined further down changes what is above; the last block may end differently.
    const most = env.references ? 0 : blocks.length - 1;
    const sources = blocks.map(([first]) => lines.slice(...(first.map ?? [])).join("\n"));
    let index = 0;
    while (index < most && sources[index] === this.sources[index]) index += 1;
    while (this.element.childNodes.length > index) this.element.lastChild.remove();
    for (const block of blocks.slice(index)) this.element.append(elementsOf(block));
    this.sources = sources;
  }

  clear() {
    this.element.replaceChildren();
    this.sources = [];
  }
}

/** The tokens of each outermost block. */
function blocksOf(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

function elementsOf(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const token of tokens) {
    if (token.type === "inline") {
      open.at(-1).append(elementsOf(token.children));
      if (open.at(-1).closest?.("li")) markTask(open.at(-1));
    } else if (token.nesting > 0) {
      const element = token.hidden ? open.at(-1) : opened(token);
      if (element !== open.at(-1)) open.at(-1).append(element);
      open.push(element);
    } else if (token.nesting < 0) {
      const element = open.pop();
      if (token.type === "table_close") inScroller(element);
    } else {
      open.at(-1).append(leaf(token));
    }
  }
  return root;
}

function opened(token) {
  if (token.type === "heading_open") {
    const level = Number(token.tag.slice(1));
    return withDirection(make(`h${Math.min(level + 2, 6)}`)); // below the page's own
  }
  if (token.type === "link_open") return linkTo(token.attrGet("href"));
  if (!TAGS.has(token.tag)) return make("span");
  const element = withDirection(make(token.tag));
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "");
  if (align) element.className = `to-${align[1]}`;
  if (token.tag === "ol") element.start = Number(token.attrGet("start") ?? 1);
  return element;
}

/** Text from right to left is laid out so, and turns nothing else around. */
function withDirection(element) {
  element.dir = "auto";
  return element;
}

/** A link that opens elsewhere and says nothing of this page; only text, where it leads to no other place. */
function linkTo(href) {
  const url = URL.canParse(href) ? new URL(href) : null;
  if (!SCHEMES.has(url?.protocol)) return make("span");
  const link = make("a");
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  return link;
}

function leaf(token) {
  if (token.type === "fence" || token.type === "code_block") return codeBlock(token.content, token.info.trim());
  if (token.type === "code_inline") return withControls(make("code"), token.content);
  if (token.type === "softbreak" || token.type === "hardbreak") return make("br");
  if (token.type === "hr") return make("hr");
  if (token.type === "formula") return formulaElement(token);
  if (token.type !== "image") return token.content;
  const link = linkTo(token.attrGet("src")); // loading it would tell others what is read here
  link.textContent = `Image: ${token.content || token.attrGet("src")}`;
  return link;
}

function markTask(element) {
  const first = element.firstChild;
  const found = first?.nodeType === Node.TEXT_NODE && TASK.exec(first.data);
  if (found) first.data = (found[1] === " " ? "☐ " : "☑ ") + first.data.slice(found[0].length);
}

/** A table that is too wide is moved sideways by itself. */
function inScroller(table) {
  const scroller = make("div", "wide");
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", "Table");
  table.replaceWith(scroller);
  scroller.append(table);
}

function codeBlock(code, info) {
  const language = info.split(/\s/, 1)[0];
  const block = make("div", "code-block");
  const head = make("div", "code-head");
  const button = make("button", "small", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", "Copy code");
  button.addEventListener("click", async () => {
    await copy(code);
    button.textContent = "Copied";
  });
  head.append(make("span", "language", language), button);
  const pre = make("pre", "code");
  pre.tabIndex = 0;
  pre.append(coloured(code, language));
  block.append(head, pre);
  return block;
}

function coloured(code, language) {
  const element = make("code");
  if (!hljs.getLanguage(language) || code.length > MOST_COLOURED) return withControls(element, code);
  const result = hljs.highlight(code, { language, ignoreIllegals: true });
  if (result.errorRaised) return withControls(element, code);
  element.append(result._emitter.root);
  return element;
}

/** Text of code, with the signs that would show it in another order than it has in a file. */
function withControls(element, text) {
  for (const part of text.split(CONTROLS)) {
    if (!CONTROLS.test(part)) element.append(part);
    else element.append(make("span", "control", `U+${part.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
  }
  return element;
}

/** What the highlighter finds, as elements where its own would write HTML. */
class Emitter {
  constructor() {
    this.root = document.createDocumentFragment();
    this.open = [this.root];
  }

  addText(text) {
    withControls(this.open.at(-1), text);
  }

  openNode(name) {
    const element = make("span", `code-${name.split(/[.:]/, 1)[0]}`);
    this.open.at(-1).append(element);
    this.open.push(element);
  }

  closeNode() {
    if (this.open.length > 1) this.open.pop();
  }

  startScope(name) {
    this.openNode(name);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage(other) {
    this.open.at(-1).append(other.root);
  }

  finalize() {}

  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Emitter });
