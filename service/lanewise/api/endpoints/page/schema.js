// What is wrong with a JSON schema, found before it is sent: its form, not what of it the server supports.

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const MAPS = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const ONES = ["items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Throws an Error that names the place, when a value is not a schema. */
export function checkSchema(schema, at = "the schema") {
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

function demand(holds, where, accepted) {
  if (!holds) throw new Error(`${where} is not ${accepted}`);
}
