/** Errors of the encryption. */

/** An error that affects only one group. */
export class EncryptionError extends Error {}

/** Messages cannot be encrypted yet: retry later. */
export class NotReadyError extends EncryptionError {}

/** Another device of the account has replaced this one. */
export class ReplacedError extends EncryptionError {}
