//! Commands on connections: the protocol, names, `CLIENT`.

use std::fmt::Write;

use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::parse::number;
use crate::session::{Replies, Session};

/// Names of the types of clients in Redis; here all are of the first.
const TYPES: [&[u8]; 5] = [b"normal", b"master", b"slave", b"replica", b"pubsub"];

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
pub(crate) fn hello<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let mut is_resp3 = context.session().is_resp3;
    if context.words.len() > 1 {
        let wrong = || Failure::text("Protocol version is not an integer or out of range");
        is_resp3 = match number(context.word(1)).ok_or_else(wrong)? {
            2 => false,
            3 => true,
            _ => {
                let said = "NOPROTO unsupported protocol version";
                return Err(Failure::Other(said.to_owned()));
            }
        };
    }
    let (mut index, mut name) = (2, None);
    while index < context.words.len() {
        let left = context.words.len() - index - 1;
        match context.word(index).to_ascii_lowercase().as_slice() {
            b"setname" if left >= 1 => {
                name = Some(checked_name(context.word(index + 1))?);
                index += 2;
            }
            b"auth" if left >= 2 => {
                check_user(context.word(index + 1))?;
                index += 3;
            }
            _ => {
                let option = String::from_utf8_lossy(context.word(index)).into_owned();
                return Err(Failure::text(format!("Syntax error in HELLO option '{option}'")));
            }
        }
    }
    let session = context.session();
    session.is_resp3 = is_resp3;
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    let id = session.id;
    context.out.is_resp3 = is_resp3;
    let out = &mut *context.out;
    out.map(7);
    for (key, value) in [("server", "unlade-kv"), ("version", env!("CARGO_PKG_VERSION"))] {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if is_resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

/// There is one user, without a password.
fn check_user(user: &[u8]) -> Answer {
    let said = "WRONGPASS invalid username-password pair or user is disabled.";
    (user == b"default").then_some(()).ok_or_else(|| Failure::Other(said.to_owned()))
}

/// `AUTH [user] password`.
pub(crate) fn auth<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    match context.words.len() {
        2 => Err(Failure::text(
            "AUTH <password> called without any password configured for the default user. Are \
             you sure your configuration is correct?",
        )),
        3 => {
            check_user(context.word(1))?;
            context.out.simple("OK");
            Ok(())
        }
        _ => Err(Failure::Syntax),
    }
}

/// `RESET`: the state of a new connection.
pub(crate) fn reset<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.state.unwatch(context.number);
    let session = context.session();
    session.transaction = None;
    session.database = 0;
    session.is_resp3 = false;
    session.name.clear();
    session.replies = Replies::All;
    (context.out.is_resp3, context.out.is_muted) = (false, false);
    context.out.simple("RESET");
    Ok(())
}

pub(crate) fn quit<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.session().is_ending = true;
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn ping<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    match context.words.len() {
        1 => context.out.simple("PONG"),
        2 => context.out.bulk(context.words.get(1)),
        _ => return Err(Failure::WrongNumber(context.command.name)),
    }
    Ok(())
}

pub(crate) fn id<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let id = context.session().id;
    context.out.integer(id as i64);
    Ok(())
}

pub(crate) fn getname<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let name = context.session().name.clone();
    match name.is_empty() {
        true => context.out.null(),
        false => context.out.bulk(&name),
    }
    Ok(())
}

pub(crate) fn setname<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let name = checked_name(context.word(2))?.to_vec();
    context.session().name = name;
    context.out.simple("OK");
    Ok(())
}

fn checked_name(name: &[u8]) -> Result<&[u8], Failure> {
    let is_plain = name.iter().all(u8::is_ascii_graphic);
    let said = "Client names cannot contain spaces, newlines or special characters.";
    is_plain.then_some(name).ok_or_else(|| Failure::text(said))
}

pub(crate) fn reply<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let replies = match context.word(2).to_ascii_lowercase().as_slice() {
        b"on" => Replies::All,
        b"off" => Replies::None,
        b"skip" if context.session().replies == Replies::None => Replies::None,
        b"skip" => Replies::SkipNext,
        _ => return Err(Failure::Syntax),
    };
    context.session().replies = replies;
    if replies == Replies::All {
        context.out.is_muted = false;
        context.out.simple("OK");
    }
    Ok(())
}

/// The line of a session in `CLIENT LIST`.
fn line<I>(session: &Session<I>, now_ms: u64) -> String {
    let mut text = String::new();
    let since = |time_ms: u64| now_ms.saturating_sub(time_ms) / 1000;
    let queued = session.transaction.as_ref();
    let multi = queued.map_or(-1, |it| it.queue.len() as i64);
    let multi_bytes = queued.map_or(0, |it| it.bytes);
    let buffers = session.buffers;
    // A write to a string does not fail.
    let _ = write!(
        text,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 \
         multi={multi} qbuf={} qbuf-free={} argv-mem=0 multi-mem={multi_bytes} rbs=0 rbp=0 obl=0 \
         oll={} omem={} tot-mem={} events=r cmd={} user=default redir=-1 resp={}",
        session.id,
        session.peer,
        session.local,
        session.fd,
        String::from_utf8_lossy(&session.name),
        since(session.since_ms),
        since(session.used_ms),
        if queued.is_some() { "x" } else { "N" },
        session.database,
        buffers.input,
        buffers.input_free,
        u8::from(buffers.output > 0),
        buffers.output,
        buffers.input + buffers.input_free + buffers.output + multi_bytes,
        session.last,
        if session.is_resp3 { 3 } else { 2 },
    );
    text
}

pub(crate) fn info<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let now_ms = context.state.now_ms;
    let text = line(context.session(), now_ms) + "\n";
    context.out.verbatim(&text);
    Ok(())
}

fn is_type(word: &[u8]) -> Result<bool, Failure> {
    let is_known = TYPES.iter().any(|name| name.eq_ignore_ascii_case(word));
    let said = || format!("Unknown client type '{}'", String::from_utf8_lossy(word));
    is_known.then_some(word.eq_ignore_ascii_case(TYPES[0])).ok_or_else(|| Failure::text(said()))
}

/// `CLIENT LIST [TYPE type | ID id …]`.
pub(crate) fn list<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let count = context.words.len();
    let mut ids = None;
    let mut is_wanted = true;
    match context.word(2).to_ascii_lowercase().as_slice() {
        _ if count == 2 => {}
        b"type" if count == 4 => is_wanted = is_type(context.word(3))?,
        b"id" if count > 3 => {
            let mut wanted = Vec::new();
            for index in 3..count {
                let id = number(context.word(index)).filter(|id| *id > 0);
                wanted.push(id.ok_or_else(|| Failure::text("Invalid client ID"))? as u64);
            }
            ids = Some(wanted);
        }
        _ => return Err(Failure::Syntax),
    }
    let is_in = |session: &&Session<C::Incoming>| {
        is_wanted && ids.as_ref().is_none_or(|ids| ids.contains(&session.id))
    };
    let sessions = context.state.sessions.iter().map(|(_, session)| session);
    let mut sessions: Vec<_> = sessions.filter(is_in).collect();
    sessions.sort_unstable_by_key(|session| session.id);
    let now_ms = context.state.now_ms;
    let text: String = sessions.iter().map(|session| line(session, now_ms) + "\n").collect();
    context.out.verbatim(&text);
    Ok(())
}

/// Conditions of `CLIENT KILL`; all must hold.
#[derive(Clone, Debug, Default)]
struct Victims {
    id: Option<u64>,
    peer: Option<String>,
    local: Option<String>,
    has_other_type: bool,
    includes_me: bool,
}

impl Victims {
    fn parse<C: Copies>(context: &Context<'_, C>) -> Result<Victims, Failure> {
        let mut victims = Victims::default();
        // Pairs follow `CLIENT KILL`.
        for index in (2..context.words.len()).step_by(2) {
            if index + 1 == context.words.len() {
                return Err(Failure::Syntax);
            }
            victims.add(context.word(index), context.word(index + 1))?;
        }
        Ok(victims)
    }

    fn add(&mut self, option: &[u8], value: &[u8]) -> Answer {
        let text = || Some(String::from_utf8_lossy(value).into_owned());
        match option.to_ascii_lowercase().as_slice() {
            b"id" => {
                let id = number(value).filter(|id| *id > 0);
                let said = "client-id should be greater than 0";
                self.id = Some(id.ok_or_else(|| Failure::text(said))? as u64);
            }
            b"addr" => self.peer = text(),
            b"laddr" => self.local = text(),
            b"type" => self.has_other_type = !is_type(value)?,
            b"user" if value == b"default" => {}
            b"user" => {
                let said = format!("No such user '{}'", String::from_utf8_lossy(value));
                return Err(Failure::text(said));
            }
            b"skipme" => match value.to_ascii_lowercase().as_slice() {
                b"yes" => self.includes_me = false,
                b"no" => self.includes_me = true,
                _ => return Err(Failure::Syntax),
            },
            _ => return Err(Failure::Syntax),
        }
        Ok(())
    }

    fn include<I>(&self, session: &Session<I>, me: u64) -> bool {
        !self.has_other_type
            && (self.includes_me || session.id != me)
            && self.id.is_none_or(|id| id == session.id)
            && self.peer.as_ref().is_none_or(|peer| *peer == session.peer)
            && self.local.as_ref().is_none_or(|local| *local == session.local)
    }
}

/// `CLIENT KILL address`, and `CLIENT KILL option value …`.
pub(crate) fn kill<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let is_old = context.words.len() == 3;
    let victims = if is_old {
        let peer = String::from_utf8_lossy(context.word(2)).into_owned();
        Victims { peer: Some(peer), includes_me: true, ..Victims::default() }
    } else {
        Victims::parse(context)?
    };
    let me = context.session().id;
    let state = &mut *context.state;
    let mut count = 0;
    for (_, session) in state.sessions.iter_mut() {
        if session.is_ending || !victims.include(session, me) {
            continue;
        }
        count += 1;
        // The own connection ends when the answer is sent.
        session.is_ending = true;
        if session.id != me {
            state.killed.push(session.client);
        }
    }
    match (is_old, count) {
        (false, _) => context.out.integer(count),
        (true, 0) => return Err(Failure::text("No such client")),
        (true, _) => context.out.simple("OK"),
    }
    Ok(())
}
