/** The server's responses as JSON. Bytes are base64. */

import type { Id, Role, Visibility } from "../api";

export interface User {
  user_id: Id;
  username: string;
  alias: string;
  signing_key_fingerprint: string;
}

export interface ListedMember extends User {
  role: Role;
}

export interface ListedGroup {
  group_id: Id;
  alias: string;
  members: ListedMember[];
  group_name: string;
  /** Hexadecimal; "": no MLS group was created yet. */
  mls_group_id: string;
  message_expiry_seconds: number;
  visibility: Visibility;
}

export interface Retention {
  server_retention_seconds: number;
  group_expiry_seconds: number;
  effective_expiry_seconds: number;
  legal_hold: boolean;
  /** Messages before this second are hidden permanently; 0: none. */
  hidden_before: number;
  taken_back: number[];
  expiry_set_by: Id;
  more: boolean;
  last_sequence_num: number;
}

export interface StoredMessage {
  sequence_num: number;
  sender_id: Id;
  mls_message: string;
  created_at: number;
  self_destruct_seconds: number;
  redacted: boolean;
  expires_at: number;
}

export interface ListedInvite {
  invite_id: Id;
  group_id: Id;
  group_name: string;
  group_alias: string;
  inviter_username: string;
  created_at: number;
  invitee_id: Id;
  inviter_id: Id;
}

export interface ListedWelcome {
  group_id: Id;
  welcome_message: string;
  welcome_id: Id;
}

/** An event of the stream. */
export interface ServerEvent {
  name: string;
  data: Record<string, unknown>;
}
