/** A file of 32-byte slots that are overwritten in place, one for the key of each stored value. */

export const SLOT_BYTES = 32;

/** A file that is written in place: a synchronous access handle of the Origin Private File System. */
export interface KeyFile {
  getSize(): number;
  read(buffer: Uint8Array, options: { at: number }): number;
  write(buffer: Uint8Array, options: { at: number }): number;
  flush(): void;
  truncate(size: number): void;
  close(): void;
}

interface SyncAccessFile {
  createSyncAccessHandle(): Promise<KeyFile>;
}

/** A Worker that has just ended may still have the file open for a moment. */
const ATTEMPTS = 20;
const RETRY_MS = 100;

/** Opens a file of this origin. Throws if the browser does not support it, or another Worker has it open. */
export async function openKeyFile(name: string): Promise<KeyFile> {
  const folder = await navigator.storage.getDirectory();
  const file = (await folder.getFileHandle(name, { create: true })) as unknown as SyncAccessFile;
  for (let attempts = 1; ; attempts++) {
    try {
      return await file.createSyncAccessHandle();
    } catch (error) {
      if (attempts === ATTEMPTS) throw error;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

export class Slots {
  private readonly free: number[] = [];
  private count: number;
  private isErased = false;

  /** `used`: the slots of stored values. All other keys are overwritten. */
  constructor(
    private readonly file: KeyFile,
    used: ReadonlySet<number>,
  ) {
    const size = file.getSize();
    this.count = Math.ceil(size / SLOT_BYTES);
    const all = new Uint8Array(this.count * SLOT_BYTES);
    file.read(all.subarray(0, size), { at: 0 });
    const orphans: number[] = [];
    for (let slot = 0; slot < this.count; slot++) {
      if (used.has(slot)) continue;
      if (all.subarray(slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES).some((each) => each !== 0)) orphans.push(slot);
      else this.free.push(slot);
    }
    this.erase(orphans);
  }

  /** Whether a slot contains a key. */
  has(slot: number): boolean {
    return slot < this.count && this.read(slot).some((each) => each !== 0);
  }

  read(slot: number): Uint8Array<ArrayBuffer> {
    const key = new Uint8Array(SLOT_BYTES);
    if (this.file.read(key, { at: slot * SLOT_BYTES }) !== SLOT_BYTES) throw new Error("a key is missing");
    return key;
  }

  /** Writes keys to free slots, flushes them to the disk, and returns the slots. */
  store(keys: readonly Uint8Array[]): number[] {
    if (this.isErased) throw new Error("the keys have been erased");
    const slots = keys.map((key) => {
      const slot = this.free.pop() ?? this.count++;
      this.write(key, slot);
      return slot;
    });
    if (slots.length > 0) this.file.flush();
    return slots;
  }

  /** Overwrites slots, flushes the file, and frees them. */
  erase(slots: readonly number[]): void {
    this.overwrite(slots);
    this.free.push(...slots);
  }

  /** Overwrites slots to which values still refer: they are not used again before the next start. */
  overwrite(slots: readonly number[]): void {
    if (this.isErased) return;
    for (const slot of slots) this.write(new Uint8Array(SLOT_BYTES), slot);
    if (slots.length > 0) this.file.flush();
  }

  /** Overwrites all slots and truncates the file. No keys can be stored after this. */
  eraseAll(): void {
    if (this.isErased) return;
    this.file.write(new Uint8Array(this.count * SLOT_BYTES), { at: 0 });
    this.file.flush();
    this.file.truncate(0);
    this.file.flush();
    this.isErased = true;
  }

  close(): void {
    this.file.close();
  }

  private write(key: Uint8Array, slot: number): void {
    if (this.file.write(key, { at: slot * SLOT_BYTES }) !== SLOT_BYTES) throw new Error("a key could not be written");
  }
}
