// Mathematics in Markdown: where a formula stands, and the formula as MathML. KaTeX, which is loaded with
// the first formula, only reads it: of the tree that it gives, elements are made of the kinds known here.

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
const MAX_FORMULA = 4_000; // characters: reading more holds up the page
const MAX_FORMULA_LINES = 100;
const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
const ELEMENTS = new Set([
  "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "ms", "mfrac", "msqrt", "mroot", "mstyle", "merror", "mpadded",
  "mphantom", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "menclose",
]);
const ATTRIBUTES = new Set([
  "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display", "displaystyle", "fence",
  "height", "largeop", "linethickness", "lspace", "mathbackground", "mathcolor", "mathsize", "mathvariant", "maxsize",
  "minsize", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "voffset", "width",
]);
const OPTIONS = { output: "mathml", trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 500 };

let katex = null;
let loading = null;

/** Let a parser of Markdown find formulas: tokens of the type "formula". */
export function findFormulas(parser) {
  parser.inline.ruler.before("escape", "formula", inline);
  parser.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
}

/** The formula that begins at a place of a text: its end, what it says, and whether it stands alone. */
function formulaAt(text, start, end) {
  for (const [open, close, isDisplay] of PAIRS) {
    if (!text.startsWith(open, start)) continue;
    const from = start + open.length;
    const found = text.slice(from, Math.min(end, from + MAX_FORMULA)).indexOf(close);
    const formula = found < 0 ? "" : text.slice(from, from + found);
    const after = from + found + close.length;
    if (!formula.trim()) return null;
    if (open !== "$") return { formula, isDisplay, after };
    // Prices are no formulas: "$5 and $6"; code is none.
    return /^\s|\s$|\\$|`|\n\s*\n/.test(formula) || /\d/.test(text[after] ?? "") ? null : { formula, isDisplay, after };
  }
  return null;
}

function put(state, { formula, isDisplay }, map) {
  const token = state.push("formula", "math", 0);
  token.content = formula;
  token.meta = { isDisplay };
  if (map) token.map = map;
}

function inline(state, isSilent) {
  const found = formulaAt(state.src, state.pos, state.posMax);
  if (!found) return false;
  if (!isSilent) put(state, found);
  state.pos = found.after;
  return true;
}

/** Lines of their own, empty ones among them: they begin with $$ or \[ and end with its other half. */
function block(state, first, last, isSilent) {
  if (state.sCount[first] - state.blkIndent >= 4) return false;
  const text = state.getLines(first, Math.min(last, first + MAX_FORMULA_LINES), state.blkIndent, false).trimStart();
  const found = formulaAt(text, 0, text.length);
  if (!found?.isDisplay || text.slice(found.after).split("\n", 1)[0].trim()) return false;
  if (isSilent) return true;
  state.line = first + text.slice(0, found.after).split("\n").length;
  put(state, found, [first, state.line]);
  return true;
}

/** A formula on the page: as it is written until the library is here, and where it cannot be read. */
export function formulaElement({ content, meta: { isDisplay } }) {
  const element = document.createElement("span");
  element.className = isDisplay ? "formula alone" : "formula";
  const show = () => {
    const math = asMathML(content, isDisplay);
    if (math) element.replaceChildren(math);
  };
  element.textContent = content;
  if (katex) show();
  else loaded().then(show, () => {});
  return element;
}

/** The library is a script that sets a global name. */
async function loaded() {
  loading ??= import("./vendor/katex.js");
  try {
    await loading;
  } catch (error) {
    loading = null; // tried again with the next formula
    throw error;
  }
  katex = globalThis.katex;
}

function asMathML(content, displayMode) {
  try {
    const tree = katex.__renderToDomTree(content, { ...OPTIONS, displayMode, macros: {} });
    return fragmentOf(tree.children).firstChild;
  } catch {
    return null; // no mathematics, or more of it than is read
  }
}

function fragmentOf(nodes) {
  const fragment = document.createDocumentFragment();
  for (const node of nodes) {
    if (node.text !== undefined) fragment.append(node.text);
    else if (node.character) fragment.append(node.character);
    else if (node.width !== undefined) fragment.append(element("mspace", { width: `${node.width}em` }));
    else if (node.type === "semantics") fragment.append(fragmentOf(node.children.slice(0, 1))); // not its source again
    else if (!ELEMENTS.has(node.type)) fragment.append(fragmentOf(node.children ?? []));
    else {
      const made = element(node.type, node.attributes);
      made.append(fragmentOf(node.children));
      fragment.append(made);
    }
  }
  return fragment;
}

function element(type, attributes) {
  const made = document.createElementNS(NAMESPACE, type);
  for (const [name, value] of Object.entries(attributes)) if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
  return made;
}
