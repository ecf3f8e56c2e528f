/**
 * What is kept in the browser. Each value lies in IndexedDB, encrypted with a key of its own, and that key lies in a slot
 * which is overwritten in place once the value is replaced or deleted. So what IndexedDB keeps of old values in its logs
 * cannot be read by anybody.
 */

import { deleteDB, openDB, type DBSchema, type IDBPDatabase } from "idb";
import { pack, unpack } from "./values";
import { random, utf8, type Bytes } from "../bytes";
import { SLOT_BYTES, Slots, type KeyFile } from "./slots";

/** The storage of the browser has failed: it concerns everything that is here. */
export class StorageError extends Error {}

/** The name of a table, and what names a value in it. */
export type Key = readonly [string, ...(string | number)[]];

interface Sealed {
  slot: number;
  data: ArrayBuffer;
}

interface Schema extends DBSchema {
  values: { key: (string | number)[]; value: Sealed };
}

const STORE = "values";
/** A key is used once, so its nonce need not differ. */
const NONCE = new Uint8Array(12);
const AT_ONCE = 1_000;

/** What is written in one transaction. */
export class Batch {
  readonly puts = new Map<string, { key: Key; value: unknown }>();
  readonly deletes = new Map<string, Key>();
  /** Of these the keys are overwritten also where nothing can be written. */
  readonly erased = new Set<string>();

  put(key: Key, value: unknown): this {
    const name = nameOf(key);
    this.deletes.delete(name);
    this.erased.delete(name);
    this.puts.set(name, { key, value });
    return this;
  }

  delete(key: Key): this {
    const name = nameOf(key);
    this.puts.delete(name);
    this.deletes.set(name, key);
    return this;
  }

  /** Deletes a value that may not stay: it goes also if the rest of the batch cannot be written, as on a full disk. */
  erase(key: Key): this {
    this.erased.add(nameOf(key));
    return this.delete(key);
  }

  get isEmpty(): boolean {
    return this.puts.size === 0 && this.deletes.size === 0;
  }
}

export class Vault {
  private last: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly name: string,
    private readonly db: IDBPDatabase<Schema>,
    private readonly slots: Slots,
    private readonly places: Map<string, { key: Key; slot: number }>,
  ) {}

  /** Opens the database `name`, whose keys are in `file`. Keys to which no value refers are overwritten. */
  static async open(name: string, file: KeyFile): Promise<Vault> {
    const db = await openDB<Schema>(name, 1, { upgrade: (made) => void made.createObjectStore(STORE) });
    const places = new Map<string, { key: Key; slot: number }>();
    for (let after: IDBKeyRange | null = null; ; ) {
      const [keys, values] = await Promise.all([db.getAllKeys(STORE, after, AT_ONCE), db.getAll(STORE, after, AT_ONCE)]);
      keys.forEach((key, at) => places.set(nameOf(key as unknown as Key), { key: key as unknown as Key, slot: values[at]!.slot }));
      if (keys.length < AT_ONCE) break;
      after = IDBKeyRange.lowerBound(keys.at(-1)!, true);
    }
    const slots = new Slots(file, new Set([...places.values()].map((each) => each.slot)));
    // Values whose keys were overwritten before they could be deleted: the page was closed meanwhile.
    const dead = [...places].filter(([, { slot }]) => !slots.has(slot));
    const transaction = db.transaction(STORE, "readwrite");
    for (const [name, { key }] of dead) {
      void transaction.store.delete([...key]);
      places.delete(name);
    }
    await transaction.done;
    return new Vault(name, db, slots, places);
  }

  /** The keys of the values whose keys begin with `prefix`; of all without one. */
  keys(...prefix: (string | number)[]): Key[] {
    if (prefix.length === 0) return [...this.places.values()].map((each) => each.key);
    const begin = JSON.stringify(prefix).slice(0, -1);
    return [...this.places].flatMap(([name, { key }]) =>
      name.startsWith(begin) && (name[begin.length] === "," || name[begin.length] === "]") ? [key] : [],
    );
  }

  /** The value of a key; undefined if there is none. Throws where it cannot be decrypted. */
  async get<T>(key: Key): Promise<T | undefined> {
    return (await this.getAll<T>([key]))[0];
  }

  /** The values of keys, in their order. */
  getAll<T>(keys: readonly Key[]): Promise<(T | undefined)[]> {
    return this.inTurn(async () => {
      const { store } = this.db.transaction(STORE);
      const found = await Promise.all(keys.map((key) => (this.places.has(nameOf(key)) ? store.get([...key]) : undefined)));
      return Promise.all(
        found.map((sealed, at) => sealed && (open(sealed, keys[at]!, this.slots.read(sealed.slot)) as Promise<T>)),
      );
    });
  }

  /** Reads and writes come one after the other: a value that is read is not replaced meanwhile. */
  private inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.last.then(work);
    this.last = done.catch(() => undefined);
    return done;
  }

  /** Writes a batch: all of it, or nothing but what it erases. It is on the disk when it returns, and what it replaces is gone. */
  write(batch: Batch): Promise<void> {
    return batch.isEmpty ? Promise.resolve() : this.inTurn(() => this.writeNow(batch));
  }

  private async writeNow({ puts, deletes, erased }: Batch): Promise<void> {
    const entries = [...puts.values()];
    const keys = entries.map(() => random(SLOT_BYTES));
    const sealed = await Promise.all(entries.map(({ key, value }, at) => seal(value, key, keys[at]!)));
    let slots: number[] = [];
    try {
      slots = this.slots.store(keys);
      const transaction = this.db.transaction(STORE, "readwrite", { durability: "strict" });
      entries.forEach(({ key }, at) => void transaction.store.put({ slot: slots[at]!, data: sealed[at]! }, [...key]));
      for (const key of deletes.values()) void transaction.store.delete([...key]);
      await transaction.done;
    } catch (error) {
      this.slots.erase(slots);
      this.slots.overwrite(this.take(erased)); // the values without keys are deleted at the next start
      throw new StorageError(error instanceof Error ? error.message : String(error));
    }
    const old = this.take([...puts.keys(), ...deletes.keys()]);
    entries.forEach(({ key }, at) => this.places.set(nameOf(key), { key, slot: slots[at]! }));
    this.slots.erase(old);
  }

  /** Forgets where values are; returns their slots. */
  private take(names: Iterable<string>): number[] {
    const slots: number[] = [];
    for (const name of names) {
      const place = this.places.get(name);
      if (place) slots.push(place.slot);
      this.places.delete(name);
    }
    return slots;
  }

  /** Overwrites all keys at once: what is read or written from now on fails. */
  eraseKeys(): void {
    this.slots.eraseAll();
  }

  /** Erases everything, and closes. */
  async destroy(): Promise<void> {
    this.eraseKeys();
    await this.last;
    await this.close();
    await deleteDB(this.name);
  }

  async close(): Promise<void> {
    await this.last;
    this.slots.close();
    this.db.close();
  }
}

const nameOf = (key: Key): string => JSON.stringify(key);

const algorithm = (key: Key): AesGcmParams => ({ name: "AES-GCM", iv: NONCE, additionalData: utf8(nameOf(key)) });

const imported = (key: Bytes, use: KeyUsage): Promise<CryptoKey> =>
  crypto.subtle.importKey("raw", key, "AES-GCM", false, [use]);

async function seal(value: unknown, key: Key, secret: Bytes): Promise<ArrayBuffer> {
  return crypto.subtle.encrypt(algorithm(key), await imported(secret, "encrypt"), pack(value));
}

async function open({ data }: Sealed, key: Key, secret: Bytes): Promise<unknown> {
  return unpack(new Uint8Array(await crypto.subtle.decrypt(algorithm(key), await imported(secret, "decrypt"), data)));
}
