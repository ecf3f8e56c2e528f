-- The setting `self_destruct_max_age` in force, beside the policies of the groups: seconds. It is written with them. The
-- value here is what the setting was before it was in the stored settings.
ALTER TABLE server_state ADD COLUMN self_destruct_max_age INTEGER NOT NULL DEFAULT 2592000;
UPDATE server_state
SET self_destruct_max_age = ifnull(json_extract(policy_settings, '$.self_destruct_max_age'), self_destruct_max_age);
