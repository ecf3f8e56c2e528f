/** Slots of 32 bytes in one file that are overwritten where they lie: the key of each stored value has one. */

export const SLOT_BYTES = 32;

/** A file that is read and written in place, as a synchronous access handle of the Origin Private File System. */
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

/** A Worker that has just ended may still have the file for a moment. */
const TRIES = 20;
const AGAIN_MS = 100;

/** The file of this origin. Throws where the browser has none, or another Worker has it open. */
export async function openKeyFile(name: string): Promise<KeyFile> {
  const folder = await navigator.storage.getDirectory();
  const file = (await folder.getFileHandle(name, { create: true })) as unknown as SyncAccessFile;
  for (let tries = 1; ; tries++) {
    try {
      return await file.createSyncAccessHandle();
    } catch (error) {
      if (tries === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

export class Slots {
  private readonly free: number[] = [];
  private count: number;
  private isOver = false;

  /** `used`: the slots to which something refers. What else has a key is overwritten. */
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

  /** Tells whether a slot has a key. */
  has(slot: number): boolean {
    return slot < this.count && this.read(slot).some((each) => each !== 0);
  }

  read(slot: number): Uint8Array<ArrayBuffer> {
    const key = new Uint8Array(SLOT_BYTES);
    if (this.file.read(key, { at: slot * SLOT_BYTES }) !== SLOT_BYTES) throw new Error("a key is missing");
    return key;
  }

  /** Writes keys, each into a slot of its own. They are on the disk when it returns. */
  store(keys: readonly Uint8Array[]): number[] {
    if (this.isOver) throw new Error("everything was erased");
    const slots = keys.map((key) => {
      const slot = this.free.pop() ?? this.count++;
      this.write(key, slot);
      return slot;
    });
    if (slots.length > 0) this.file.flush();
    return slots;
  }

  /** Overwrites slots, and frees them. That is on the disk when it returns. */
  erase(slots: readonly number[]): void {
    this.overwrite(slots);
    this.free.push(...slots);
  }

  /** Overwrites slots to which something still refers: they get no other key before the next start. */
  overwrite(slots: readonly number[]): void {
    if (this.isOver) return;
    for (const slot of slots) this.write(new Uint8Array(SLOT_BYTES), slot);
    if (slots.length > 0) this.file.flush();
  }

  /** Overwrites all slots, and leaves an empty file. No key is stored any more. */
  eraseAll(): void {
    if (this.isOver) return;
    this.file.write(new Uint8Array(this.count * SLOT_BYTES), { at: 0 });
    this.file.flush();
    this.file.truncate(0);
    this.file.flush();
    this.isOver = true;
  }

  close(): void {
    this.file.close();
  }

  private write(key: Uint8Array, slot: number): void {
    if (this.file.write(key, { at: slot * SLOT_BYTES }) !== SLOT_BYTES) throw new Error("a key could not be written");
  }
}
