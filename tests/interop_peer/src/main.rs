//! Members of groups by mls-rs, with the cipher suite and the options of existing clients.
//!
//! Each line that comes is a JSON object with `op` and `client`; each line that goes is the answer, with `ok`.
//! Bytes are hexadecimal, and objects of MLS are whole MLSMessages.

use std::collections::HashMap;
use std::error::Error;
use std::io::{stdin, stdout, BufRead, Write};

use mls_rs::client_builder::{MlsConfig, PaddingMode};
use mls_rs::extension::recommended::LastResortKeyPackageExt;
use mls_rs::extension::MlsExtension;
use mls_rs::group::ReceivedMessage;
use mls_rs::identity::basic::{BasicCredential, BasicIdentityProvider};
use mls_rs::identity::SigningIdentity;
use mls_rs::mls_rules::{CommitOptions, DefaultMlsRules, EncryptionOptions};
use mls_rs::time::MlsTime;
use mls_rs::{CipherSuite, CipherSuiteProvider, Client, CryptoProvider, ExtensionList, Group, MlsMessage};
use mls_rs_crypto_openssl::OpensslCryptoProvider;
use serde_json::{json, Value};

const SUITE: CipherSuite = CipherSuite::CURVE448_CHACHA;

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Member<C: MlsConfig> {
    client: Client<C>,
    group: Option<Group<C>>,
}

/// What was asked for.
struct Request(Value);

impl Request {
    fn text(&self, name: &str) -> Outcome<&str> {
        self.0[name].as_str().ok_or_else(|| format!("{name} is missing").into())
    }

    fn bytes(&self, name: &str) -> Outcome<Vec<u8>> {
        Ok(hex::decode(self.text(name)?)?)
    }

    fn message(&self, name: &str) -> Outcome<MlsMessage> {
        Ok(MlsMessage::from_bytes(&self.bytes(name)?)?)
    }

    fn time(&self) -> Option<MlsTime> {
        Some(self.0["time"].as_u64().map_or_else(MlsTime::now, MlsTime::from))
    }

    fn is_set(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    fn list(&self, name: &str) -> Vec<Value> {
        self.0[name].as_array().cloned().unwrap_or_default()
    }
}

fn encoded(message: &MlsMessage) -> Outcome<String> {
    Ok(hex::encode(message.to_bytes()?))
}

fn new_client(uuid: &str) -> Outcome<Client<impl MlsConfig>> {
    let crypto = OpensslCryptoProvider::new();
    let provider = crypto.cipher_suite_provider(SUITE).ok_or("no such cipher suite")?;
    let (secret, public) = provider.signature_key_generate()?;
    let credential = BasicCredential::new(hex::decode(uuid.replace('-', ""))?).into_credential();
    let commits = CommitOptions::new()
        .with_path_required(true)
        .with_ratchet_tree_extension(true)
        .with_single_welcome_message(true)
        .with_allow_external_commit(true);
    let rules = DefaultMlsRules::new()
        .with_commit_options(commits)
        .with_encryption_options(EncryptionOptions::new(false, PaddingMode::StepFunction));
    Ok(Client::builder()
        .identity_provider(BasicIdentityProvider::new())
        .crypto_provider(crypto)
        .mls_rules(rules)
        .signing_identity(SigningIdentity::new(credential, public), secret, SUITE)
        .build())
}

fn from_outside<C: MlsConfig>(member: &mut Member<C>, request: &Request) -> Outcome<Value> {
    let client = &member.client;
    let empty = ExtensionList::new;
    match request.text("op")? {
        "key_package" => {
            let mut extensions = empty();
            if request.is_set("last_resort") {
                extensions.set(LastResortKeyPackageExt.into_extension()?);
            }
            let package = client.generate_key_package_message(extensions, empty(), request.time())?;
            Ok(json!({"key_package": encoded(&package)?}))
        }
        "create_group" => {
            member.group = Some(client.create_group(empty(), empty(), request.time())?);
            Ok(json!({}))
        }
        "join" => {
            member.group = Some(client.join_group(None, &request.message("welcome")?, request.time())?.0);
            Ok(json!({}))
        }
        "external_commit" => {
            let mut builder = client.external_commit_builder()?;
            if request.is_set("resync") {
                let old = member.group.as_ref().ok_or("there is no group to come back into")?;
                builder = builder.with_removal(old.current_member_index());
            }
            let (group, commit) = builder.build(request.message("group_info")?)?;
            member.group = Some(group);
            Ok(json!({"commit": encoded(&commit)?}))
        }
        "leave" => {
            member.group = None;
            Ok(json!({}))
        }
        _ => in_the_group(member.group.as_mut().ok_or("this client is in no group")?, request),
    }
}

fn in_the_group<C: MlsConfig>(group: &mut Group<C>, request: &Request) -> Outcome<Value> {
    match request.text("op")? {
        "commit" => {
            let mut builder = group.commit_builder();
            for package in request.list("add") {
                let bytes = hex::decode(package.as_str().ok_or("no key package")?)?;
                builder = builder.add_member(MlsMessage::from_bytes(&bytes)?)?;
            }
            for index in request.list("remove") {
                builder = builder.remove_member(index.as_u64().ok_or("no index")?.try_into()?)?;
            }
            let made = builder.build()?;
            let welcome = made.welcome_messages.first().map(encoded).transpose()?;
            let info = made.external_commit_group_info.as_ref().map(encoded).transpose()?;
            Ok(json!({"commit": encoded(&made.commit_message)?, "welcome": welcome, "group_info": info}))
        }
        "clear_pending" => {
            group.clear_pending_commit();
            Ok(json!({}))
        }
        "propose" => {
            let proposal = match request.text("kind")? {
                "add" => group.propose_add(request.message("key_package")?, vec![])?,
                "remove" => {
                    let index = request.0["index"].as_u64().ok_or("no index")?.try_into()?;
                    group.propose_remove(index, vec![])?
                }
                _ => group.propose_update(vec![])?,
            };
            Ok(json!({"proposal": encoded(&proposal)?}))
        }
        "process" => Ok(match group.process_incoming_message(request.message("message")?)? {
            ReceivedMessage::ApplicationMessage(said) => {
                json!({"kind": "application", "plaintext": hex::encode(said.data()), "sender": said.sender_index})
            }
            ReceivedMessage::Commit(_) => json!({"kind": "commit"}),
            _ => json!({"kind": "other"}),
        }),
        "encrypt" => {
            let message = group.encrypt_application_message(&request.bytes("plaintext")?, vec![])?;
            Ok(json!({"message": encoded(&message)?}))
        }
        "group_info" => Ok(json!({"group_info": encoded(&group.group_info_message_allowing_ext_commit(true)?)?})),
        "info" => {
            let members: Vec<Value> =
                group.roster().members_iter().map(|member| json!({"index": member.index})).collect();
            Ok(json!({
                "group_id": hex::encode(group.group_id()),
                "epoch": group.current_epoch(),
                "epoch_authenticator": hex::encode(group.epoch_authenticator()?.as_bytes()),
                "tree_hash": hex::encode(&group.context().tree_hash),
                "own_index": group.current_member_index(),
                "members": members,
            }))
        }
        other => Err(format!("there is no {other}").into()),
    }
}

fn main() -> Outcome<()> {
    let mut members = HashMap::new();
    for line in stdin().lock().lines() {
        let answer = (|| {
            let request = Request(serde_json::from_str(&line?)?);
            let name = request.text("client")?.to_owned();
            if request.text("op")? == "new_client" {
                members.insert(name, Member { client: new_client(request.text("uuid")?)?, group: None });
                return Ok(json!({}));
            }
            from_outside(members.get_mut(&name).ok_or("there is no such client")?, &request)
        })();
        let told = match answer {
            Ok(mut found) => {
                found["ok"] = json!(true);
                found
            }
            Err(error) => {
                let error: Box<dyn Error> = error;
                json!({"ok": false, "error": error.to_string()})
            }
        };
        let mut out = stdout().lock();
        writeln!(out, "{told}")?;
        out.flush()?;
    }
    Ok(())
}
