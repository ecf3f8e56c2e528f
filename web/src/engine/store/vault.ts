/**
 * Encrypted storage. Each value is in IndexedDB, encrypted with its own key. The key is in a slot of a file, which is
 * overwritten when the value is replaced or deleted, so that old values in the logs of IndexedDB cannot be decrypted.
 */

import { deleteDB, openDB, type DBSchema, type IDBPDatabase } from "idb";
import { pack, unpack } from "./values";
import { random, utf8, type Bytes } from "../bytes";
import { SLOT_BYTES, Slots, type KeyFile } from "./slots";

/** The browser's storage has failed. */
export class StorageError extends Error {}

/** The name of a table, and the key of a value in it. */
export type Key = readonly [string, ...(string | number)[]];

interface EncryptedValue {
  slot: number;
  data: ArrayBuffer;
}

interface Schema extends DBSchema {
  values: { key: (string | number)[]; value: EncryptedValue };
}

const STORE = "values";
/** Each key encrypts only one value, so the nonce may be constant. */
const NONCE = new Uint8Array(12);
const PAGE = 1_000;

/** The changes of one transaction. */
export class Batch {
  readonly puts = new Map<string, { key: Key; value: unknown }>();
  readonly deletes = new Map<string, Key>();
  /** Values whose keys are overwritten even if the transaction fails. */
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

  /** Deletes a value even if the rest of the batch cannot be written, for example on a full disk. */
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

  /** Opens the database `name`, whose keys are in `file`. Overwrites keys that no value uses. */
  static async open(name: string, file: KeyFile): Promise<Vault> {
    const db = await openDB<Schema>(name, 1, { upgrade: (made) => void made.createObjectStore(STORE) });
    const places = new Map<string, { key: Key; slot: number }>();
    for (let after: IDBKeyRange | null = null; ; ) {
      const [keys, values] = await Promise.all([db.getAllKeys(STORE, after, PAGE), db.getAll(STORE, after, PAGE)]);
      keys.forEach((key, at) => places.set(nameOf(key as unknown as Key), { key: key as unknown as Key, slot: values[at]!.slot }));
      if (keys.length < PAGE) break;
      after = IDBKeyRange.lowerBound(keys.at(-1)!, true);
    }
    const slots = new Slots(file, new Set([...places.values()].map((each) => each.slot)));
    // Values whose keys were overwritten before the page was closed.
    const unreadable = [...places].filter(([, { slot }]) => !slots.has(slot));
    const transaction = db.transaction(STORE, "readwrite");
    for (const [name, { key }] of unreadable) {
      void transaction.store.delete([...key]);
      places.delete(name);
    }
    await transaction.done;
    return new Vault(name, db, slots, places);
  }

  /** Returns the keys that begin with `prefix`. */
  keys(...prefix: (string | number)[]): Key[] {
    if (prefix.length === 0) return [...this.places.values()].map((each) => each.key);
    const begin = JSON.stringify(prefix).slice(0, -1);
    return [...this.places].flatMap(([name, { key }]) =>
      name.startsWith(begin) && (name[begin.length] === "," || name[begin.length] === "]") ? [key] : [],
    );
  }

  /** Returns the value of a key; undefined if there is none. Throws if it cannot be decrypted. */
  async get<T>(key: Key): Promise<T | undefined> {
    return (await this.getAll<T>([key]))[0];
  }

  /** Returns the values of keys, in the same order. */
  getAll<T>(keys: readonly Key[]): Promise<(T | undefined)[]> {
    return this.serialized(async () => {
      const { store } = this.db.transaction(STORE);
      const found = await Promise.all(keys.map((key) => (this.places.has(nameOf(key)) ? store.get([...key]) : undefined)));
      return Promise.all(
        found.map((encrypted, at) => encrypted && (open(encrypted, keys[at]!, this.slots.read(encrypted.slot)) as Promise<T>)),
      );
    });
  }

  /** Runs reads and writes one after the other, so that no value is replaced while it is read. */
  private serialized<T>(work: () => Promise<T>): Promise<T> {
    const done = this.last.then(work);
    this.last = done.catch(() => undefined);
    return done;
  }

  /**
   * Writes a batch in one transaction; if that fails, only `erased` takes effect. When it returns, the batch is on the disk,
   * and replaced values cannot be decrypted. Throws StorageError.
   */
  write(batch: Batch): Promise<void> {
    return batch.isEmpty ? Promise.resolve() : this.serialized(() => this.writeNow(batch));
  }

  private async writeNow({ puts, deletes, erased }: Batch): Promise<void> {
    const entries = [...puts.values()];
    const keys = entries.map(() => random(SLOT_BYTES));
    const encrypted = await Promise.all(entries.map(({ key, value }, at) => encrypt(value, key, keys[at]!)));
    let slots: number[] = [];
    try {
      slots = this.slots.store(keys);
      const transaction = this.db.transaction(STORE, "readwrite", { durability: "strict" });
      entries.forEach(({ key }, at) => void transaction.store.put({ slot: slots[at]!, data: encrypted[at]! }, [...key]));
      for (const key of deletes.values()) void transaction.store.delete([...key]);
      await transaction.done;
    } catch (error) {
      this.slots.erase(slots);
      this.slots.overwrite(this.removePlaces(erased)); // values without keys are deleted at the next start
      throw new StorageError(error instanceof Error ? error.message : String(error));
    }
    const old = this.removePlaces([...puts.keys(), ...deletes.keys()]);
    entries.forEach(({ key }, at) => this.places.set(nameOf(key), { key, slot: slots[at]! }));
    this.slots.erase(old);
  }

  /** Removes values from `places`, and returns their slots. */
  private removePlaces(names: Iterable<string>): number[] {
    const slots: number[] = [];
    for (const name of names) {
      const place = this.places.get(name);
      if (place) slots.push(place.slot);
      this.places.delete(name);
    }
    return slots;
  }

  /** Overwrites all keys at once. Later reads and writes fail. */
  eraseKeys(): void {
    this.slots.eraseAll();
  }

  /** Erases everything, and closes the storage. */
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

const importKey = (key: Bytes, use: KeyUsage): Promise<CryptoKey> =>
  crypto.subtle.importKey("raw", key, "AES-GCM", false, [use]);

async function encrypt(value: unknown, key: Key, secret: Bytes): Promise<ArrayBuffer> {
  return crypto.subtle.encrypt(algorithm(key), await importKey(secret, "encrypt"), pack(value));
}

async function open({ data }: EncryptedValue, key: Key, secret: Bytes): Promise<unknown> {
  return unpack(new Uint8Array(await crypto.subtle.decrypt(algorithm(key), await importKey(secret, "decrypt"), data)));
}
