// Conversations in the browser's database. Every turn is a record of its own that is only ever added, so
// that tabs which write to one conversation make branches of it and never overwrite each other. Where the
// browser keeps nothing, memory does until the page is closed.

const NAME = "lanewise";
const STORES = ["conversations", "turns"];
const channel = new BroadcastChannel(NAME);

export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Call ``changed`` with the id of each conversation that another tab has written or removed. */
export function onChange(changed) {
  channel.addEventListener("message", ({ data }) => changed(data.id, data.isRemoved));
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function opened() {
  try {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("turns", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return await result(request);
  } catch {
    return null;
  }
}

const opening = opened();
const memory = { conversations: new Map(), turns: new Map() };

async function all(store, conversation) {
  const database = await opening;
  if (!database) {
    const found = [...memory[store].values()];
    return structuredClone(conversation ? found.filter((turn) => turn.conversation === conversation) : found);
  }
  const from = database.transaction(store).objectStore(store);
  return result(conversation ? from.index("conversation").getAll(conversation) : from.getAll());
}

/** Write and remove records at once: all or none. */
async function change(id, isRemoved, toDo) {
  const database = await opening;
  if (!database) {
    toDo({
      put: (store, value) => memory[store].set(value.id, structuredClone(value)),
      remove: (store, key) => memory[store].delete(key),
    });
    return;
  }
  const transaction = database.transaction(STORES, "readwrite");
  const done = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  toDo({
    put: (store, value) => transaction.objectStore(store).put(value),
    remove: (store, key) => transaction.objectStore(store).delete(key),
  });
  transaction.commit(); // also where the tab is closed next
  await done;
  channel.postMessage({ id, isRemoved });
}

/** All conversations, those written last first. */
export async function conversations() {
  return (await all("conversations")).sort((one, other) => other.updated - one.updated);
}

/** The turns of a conversation, or of all, in the order in which they were made. */
export async function turnsOf(id) {
  return (await all("turns", id)).sort((one, other) => one.created - other.created);
}

export function write(conversation, turns) {
  return change(conversation.id, false, ({ put }) => {
    put("conversations", conversation);
    for (const turn of turns) put("turns", turn);
  });
}

/** Remove a conversation; gives its turns, with which ``write`` takes that back. */
export async function remove(conversation) {
  const turns = await turnsOf(conversation.id);
  await change(conversation.id, true, (records) => {
    records.remove("conversations", conversation.id);
    for (const turn of turns) records.remove("turns", turn.id);
  });
  return turns;
}
