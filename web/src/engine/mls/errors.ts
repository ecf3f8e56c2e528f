/** Errors of the MLS layer. */

/**
 * `malformed`: not a valid MLS message. `limit`: larger than accepted. `invalid`: a check failed. `forged`: the signature
 * or membership tag is wrong. `unwanted`: an unsupported type of proposal. `stale`: of another epoch, without its keys.
 * `replayed`: its key was used before. `own`: sent by this client. `notFromHere`: signed by the own key, but not made from
 * this state, which is therefore an old copy. `notForUs`: for another group or client.
 */
export type ErrorKind =
  | "malformed"
  | "limit"
  | "invalid"
  | "forged"
  | "unwanted"
  | "stale"
  | "replayed"
  | "own"
  | "notFromHere"
  | "notForUs";

export class MlsError extends Error {
  constructor(
    readonly kind: ErrorKind,
    text: string,
  ) {
    super(text);
  }
}

export const invalid = (text: string): MlsError => new MlsError("invalid", text);

/** Converts any error of ts-mls to an MlsError, so that received messages cannot crash the Worker. */
export function asMlsError(error: unknown): MlsError {
  if (error instanceof MlsError) return error;
  const text = error instanceof Error ? error.message : String(error);
  const isForged = error instanceof Error && error.name === "CryptoVerificationError";
  return new MlsError(isForged && /^(Signature|Could not verify membership)/.test(text) ? "forged" : "invalid", text);
}
