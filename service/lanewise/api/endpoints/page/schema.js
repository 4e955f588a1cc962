// What is wrong with a JSON schema, found before it is sent: its form, not what of it the server supports.

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const MAPS = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const ONES = ["items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Throws an Error that names the place, when a value is not a schema. */
function checkSchema(schema, at = "the schema") {
  if (typeof schema === "boolean") return;
  demand(isObject(schema), at, "an object");
  const { type, required } = schema;
  const isKnown = (name) => TYPES.includes(name);
  const isType = type === undefined || (Array.isArray(type) ? type.length > 0 && type.every(isKnown) : isKnown(type));
  demand(isType, `${at}.type`, `one of ${TYPES.join(", ")}`);
  const isText = (name) => typeof name === "string";
  demand(required === undefined || (Array.isArray(required) && required.every(isText)), `${at}.required`, "a list of texts");
  demand(schema.enum === undefined || (Array.isArray(schema.enum) && schema.enum.length), `${at}.enum`, "a list of values");
  for (const name of MAPS.filter((one) => schema[one] !== undefined)) {
    demand(isObject(schema[name]), `${at}.${name}`, "an object");
    for (const [key, value] of Object.entries(schema[name])) checkSchema(value, `${at}.${name}.${key}`);
  }
  for (const name of LISTS.filter((one) => schema[one] !== undefined)) {
    demand(Array.isArray(schema[name]) && schema[name].length, `${at}.${name}`, "a list of schemas");
    schema[name].forEach((value, index) => checkSchema(value, `${at}.${name}[${index}]`));
  }
  for (const name of ONES.filter((one) => schema[one] !== undefined)) {
    if (name === "items" && Array.isArray(schema.items)) continue; // of earlier drafts
    checkSchema(schema[name], `${at}.${name}`);
  }
}

/** The schema that a text is; throws an Error. */
export function checkedSchema(text) {
  const schema = parsed(text, "the schema is");
  checkSchema(schema);
  return schema;
}

/** The tools of a request from a list of functions, bare or as the API has them; throws an Error. */
export function checkedTools(text) {
  const list = parsed(text, "the tools are");
  demand(Array.isArray(list), "the tools", "a list of functions");
  return list.map((one, index) => {
    const told = one?.function ?? one;
    demand(isObject(told), `the tools[${index}]`, "a function");
    demand(typeof told.name === "string" && /^[\w.-]{1,64}$/.test(told.name), `the tools[${index}].name`, "a name of letters, digits, _ . -");
    if (told.parameters !== undefined) checkSchema(told.parameters, `the tools[${index}].parameters`);
    return { type: "function", function: told };
  });
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} not JSON: ${error.message}`);
  }
}

function demand(holds, where, accepted) {
  if (!holds) throw new Error(`${where} is not ${accepted}`);
}
