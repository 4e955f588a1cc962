// What this tab remembers until it is closed. A browser that keeps nothing works too, it only forgets.

export function load(name) {
  try {
    return JSON.parse(sessionStorage.getItem(`lanewise.${name}`));
  } catch {
    return null;
  }
}

export function save(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(`lanewise.${name}`);
    else sessionStorage.setItem(`lanewise.${name}`, JSON.stringify(value));
  } catch {
    // nothing is kept, or there is no more room: the page goes on without
  }
}
