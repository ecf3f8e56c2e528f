/** What can go wrong in MLS: a kind for each way to go on, a plain sentence in each error. */

/**
 * `malformed`: no message of the protocol. `limit`: larger than what is taken. `invalid`: a check has failed.
 * `forged`: the signature or tag that shows who it is from is wrong. `unwanted`: a kind of proposal that is not taken.
 * `stale`: of an epoch that is not the group's, and whose keys are not there. `replayed`: its key is used up. `own`: the
 * reader's own. `notFromHere`: signed by the reader's own key, and not made from this state: it is an old one or a copy.
 * `notForUs`: for another group or another client.
 */
export type Kind =
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
    readonly kind: Kind,
    text: string,
  ) {
    super(text);
  }
}

export const invalid = (text: string): MlsError => new MlsError("invalid", text);

/** Whatever a step of ts-mls throws, as an error of this layer: what others send must not end the Worker. */
export function asMlsError(error: unknown): MlsError {
  if (error instanceof MlsError) return error;
  const text = error instanceof Error ? error.message : String(error);
  const isForged = error instanceof Error && error.name === "CryptoVerificationError";
  return new MlsError(isForged && /^(Signature|Could not verify membership)/.test(text) ? "forged" : "invalid", text);
}
