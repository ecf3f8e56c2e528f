/** Checks that the vault leaves no readable data. Exits with an error on failure. */

import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { openDB } from "idb";
import { utf8 } from "../src/engine/bytes";
import { SLOT_BYTES, type KeyFile } from "../src/engine/store/slots";
import { Batch, Vault, type Key } from "../src/engine/store/vault";

/** A file in memory. */
class File implements KeyFile {
  bytes = new Uint8Array(0);
  isBroken = false;
  isFull = false;
  getSize = (): number => this.bytes.length;
  flush = (): void => undefined;
  close = (): void => undefined;
  truncate(size: number): void {
    this.bytes = this.bytes.slice(0, size);
  }
  read(buffer: Uint8Array, { at }: { at: number }): number {
    const part = this.bytes.subarray(at, at + buffer.length);
    buffer.set(part);
    return part.length;
  }
  write(buffer: Uint8Array, { at }: { at: number }): number {
    if (this.isBroken || (this.isFull && at + buffer.length > this.bytes.length)) throw new Error("the disk is full");
    const grown = new Uint8Array(Math.max(this.bytes.length, at + buffer.length));
    grown.set(this.bytes);
    grown.set(buffer, at);
    this.bytes = grown;
    return buffer.length;
  }
}

/** Returns all values in IndexedDB, which its logs may keep. */
async function stored(name: string): Promise<{ key: string; data: ArrayBuffer }[]> {
  const db = await openDB(name);
  const keys = await db.getAllKeys("values");
  const values = await db.getAll("values");
  db.close();
  return keys.map((key, at) => ({ key: JSON.stringify(key), data: values[at].data }));
}

/** Whether any key in the file decrypts a value. */
async function canDecrypt(file: File, { key, data }: { key: string; data: ArrayBuffer }): Promise<boolean> {
  for (let at = 0; at < file.bytes.length; at += SLOT_BYTES) {
    const raw = file.bytes.slice(at, at + SLOT_BYTES);
    const secret = await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["decrypt"]);
    const algorithm = { name: "AES-GCM", iv: new Uint8Array(12), additionalData: utf8(key) };
    if (await crypto.subtle.decrypt(algorithm, secret, data).then(() => true, () => false)) return true;
  }
  return false;
}

const KEY: Key = ["text", "group", 7];

async function replacedAndDeletedValuesCannotBeDecrypted(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("one", file);
  await vault.write(new Batch().put(KEY, "a secret").put(["about"], { bytes: Uint8Array.of(1, 2, 3) }));
  const [first] = (await stored("one")).filter((each) => each.key === JSON.stringify(KEY));
  assert.ok(await canDecrypt(file, first!));
  await vault.write(new Batch().put(KEY, "another"));
  assert.equal(await vault.get(KEY), "another");
  assert.ok(!(await canDecrypt(file, first!)));
  const [second] = (await stored("one")).filter((each) => each.key === JSON.stringify(KEY));
  await vault.write(new Batch().delete(KEY));
  assert.equal(await vault.get(KEY), undefined);
  assert.ok(!(await canDecrypt(file, second!)));
  assert.deepEqual(await vault.get(["about"]), { bytes: Uint8Array.of(1, 2, 3) });
  assert.ok(!new TextDecoder("latin1").decode(file.bytes).includes("secret"));
  await vault.close();
}

async function unusedKeysAreOverwrittenAtTheStart(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("two", file);
  await vault.write(new Batch().put(KEY, "kept"));
  await vault.close();
  file.write(new Uint8Array(SLOT_BYTES).fill(9), { at: file.bytes.length }); // as if the process died before the value was written
  const again = await Vault.open("two", file);
  assert.equal(await again.get(KEY), "kept");
  assert.ok(!file.bytes.includes(9) || file.bytes.subarray(-SLOT_BYTES).every((each) => each === 0));
  await again.write(new Batch().put(["about"], 1));
  assert.equal(file.bytes.length, 2 * SLOT_BYTES); // the slot was reused
  await again.close();
}

async function aFailedWriteChangesNothing(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("three", file);
  await vault.write(new Batch().put(KEY, "before"));
  file.isBroken = true;
  await assert.rejects(vault.write(new Batch().put(KEY, "after").delete(["about"])));
  file.isBroken = false;
  assert.equal(await vault.get(KEY), "before");
  await vault.write(new Batch().put(KEY, "after"));
  assert.equal(await vault.get(KEY), "after");
  await vault.close();
}

async function aDestroyedVaultCannotBeDecrypted(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("four", file);
  await vault.write(new Batch().put(KEY, "a secret"));
  const [sealed] = await stored("four");
  await vault.destroy();
  assert.equal(file.bytes.length, 0);
  assert.ok(!(await canDecrypt(file, sealed!)));
  const again = await Vault.open("four", file);
  assert.deepEqual(again.keys(), []);
  await again.close();
}

async function pendingWritesFailOnceTheKeysAreErased(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("six", file);
  await vault.write(new Batch().put(KEY, "a secret"));
  const late = vault.write(new Batch().put(["about"], "another"));
  vault.eraseKeys();
  assert.equal(file.bytes.length, 0);
  await assert.rejects(late);
  await assert.rejects(vault.get(KEY));
  await vault.destroy();
  assert.equal(file.bytes.length, 0);
}

async function erasedValuesAreErasedEvenIfTheWriteFails(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("seven", file);
  await vault.write(new Batch().put(KEY, "a secret").put(["about"], 1));
  const before = await stored("seven");
  file.isFull = true;
  await assert.rejects(vault.write(new Batch().put(["block"], 1).erase(KEY).delete(["about"])));
  file.isFull = false;
  for (const each of before) assert.equal(await canDecrypt(file, each), each.key !== JSON.stringify(KEY));
  assert.equal(await vault.get(KEY), undefined);
  assert.equal(await vault.get(["about"]), 1);
  await vault.write(new Batch().put(["block"], 2)); // in another slot
  await vault.close();
  const again = await Vault.open("seven", file);
  assert.deepEqual(again.keys().sort(), [["about"], ["block"]]);
  assert.equal(await again.get(["block"]), 2);
  await again.close();
}

async function valuesWithoutKeysAreDeletedAtTheStart(): Promise<void> {
  const file = new File();
  const vault = await Vault.open("five", file);
  await vault.write(new Batch().put(KEY, "kept"));
  await vault.write(new Batch().put(["about"], 1));
  await vault.close();
  file.write(new Uint8Array(SLOT_BYTES), { at: 0 }); // as if the page was closed after it overwrote the key
  const again = await Vault.open("five", file);
  assert.deepEqual(again.keys(), [["about"]]);
  assert.equal(await again.get(KEY), undefined);
  assert.equal((await stored("five")).length, 1);
  await again.close();
  file.bytes = new Uint8Array(0);
  const empty = await Vault.open("five", file);
  assert.deepEqual(empty.keys(), []);
  await empty.close();
}

await replacedAndDeletedValuesCannotBeDecrypted();
await valuesWithoutKeysAreDeletedAtTheStart();
await unusedKeysAreOverwrittenAtTheStart();
await aFailedWriteChangesNothing();
await aDestroyedVaultCannotBeDecrypted();
await erasedValuesAreErasedEvenIfTheWriteFails();
await pendingWritesFailOnceTheKeysAreErased();
