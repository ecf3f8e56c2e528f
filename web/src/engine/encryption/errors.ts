/** Why something cannot be encrypted, or a group not be changed. */

/** What the data of a group leads to: only this group is affected. */
export class EncryptionError extends Error {}

/** It goes on by itself. */
export class NotReadyError extends EncryptionError {}

/** Another device of the account has taken this one's place. */
export class ReplacedError extends EncryptionError {}
