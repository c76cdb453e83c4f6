//! The commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::database::{Condition, Database, Refused, Subscriber};
use crate::protocol::{Command, Replies, number};

/// The maximum number of channels per subscriber.
const CHANNELS_MAX: usize = 1024;

/// The state of a connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Goes,
    /// The connection ends after the reply.
    Ends,
}

/// The reason that a command fails, which determines the reply.
enum Failure {
    Arguments,
    Text(&'static str),
    Refused(Refused),
}

const SYNTAX: Failure = Failure::Text("ERR syntax error");
const NOT_AN_INTEGER: Failure = Failure::Refused(Refused::NotAnInteger);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Executes a command and writes its reply.
pub(crate) fn execute(
    command: &Command<'_>,
    database: &Arc<Database>,
    subscriber: &mut Option<Subscriber>,
    replies: &mut Replies,
) -> Next {
    let mut parts = command.parts();
    let Some(name) = parts.next() else { return Next::Goes };
    // No command has a longer name.
    let mut upper = [0; 16];
    let upper = &mut upper[..name.len().min(16)];
    upper.copy_from_slice(&name[..upper.len()]);
    upper.make_ascii_uppercase();
    let arguments = Arguments { rest: parts };
    let is_subscribed = subscriber.as_ref().is_some_and(|its| !its.channels().is_empty());
    let result = match &*upper {
        b"SUBSCRIBE" => subscribe(arguments, database, subscriber, replies),
        b"UNSUBSCRIBE" => unsubscribe(arguments, subscriber, replies),
        b"PING" => ping(arguments, is_subscribed, replies),
        b"QUIT" => {
            replies.simple("OK");
            return Next::Ends;
        }
        _ if is_subscribed => Err(Failure::Text(
            "ERR only SUBSCRIBE / UNSUBSCRIBE / PING / QUIT are allowed in this context",
        )),
        b"GET" => get(arguments, database, replies),
        b"SET" => set(arguments, database, replies),
        b"DEL" => count(arguments, |key| database.remove(key), replies),
        b"EXISTS" => count(arguments, |key| database.get(key, |value| value.is_some()), replies),
        b"INCR" => increment(arguments, database, replies),
        b"EXPIRE" => expire(arguments, database, replies),
        b"TTL" => time_to_live(arguments, database, replies),
        b"PUBLISH" => publish(arguments, database, replies),
        b"CONFIG" => configuration(arguments, replies),
        b"COMMAND" => {
            // Clients do without the details.
            replies.array(0);
            Ok(())
        }
        _ => {
            let name = name[..name.len().min(64)].escape_ascii();
            replies.error(format_args!("ERR unknown command '{name}'"));
            Ok(())
        }
    };
    match result {
        Ok(()) => {}
        Err(Failure::Arguments) => {
            let name = upper.to_ascii_lowercase();
            let name = name.escape_ascii();
            replies.error(format_args!("ERR wrong number of arguments for '{name}' command"));
        }
        Err(Failure::Text(text)) => replies.error(text),
        Err(Failure::Refused(refused)) => replies.error(refused),
    }
    Next::Goes
}

type Result = std::result::Result<(), Failure>;

/// The arguments not taken yet.
struct Arguments<I> {
    rest: I,
}

impl<'a, I: ExactSizeIterator<Item = &'a [u8]>> Arguments<I> {
    /// Takes `N` arguments; fails if there are more.
    fn exactly<const N: usize>(mut self) -> std::result::Result<[&'a [u8]; N], Failure> {
        let taken = self.first()?;
        if self.rest.len() == 0 { Ok(taken) } else { Err(Failure::Arguments) }
    }

    /// Takes `N` arguments.
    fn first<const N: usize>(&mut self) -> std::result::Result<[&'a [u8]; N], Failure> {
        if self.rest.len() < N {
            return Err(Failure::Arguments);
        }
        Ok(std::array::from_fn(|_| self.rest.next().unwrap_or_default()))
    }
}

fn ping<'a>(
    mut arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    is_subscribed: bool,
    replies: &mut Replies,
) -> Result {
    let text = arguments.rest.next();
    let [] = arguments.exactly()?;
    match text {
        _ if is_subscribed => {
            replies.array(2);
            replies.string(Some(b"pong"));
            replies.string(Some(text.unwrap_or_default()));
        }
        Some(text) => replies.string(Some(text)),
        None => replies.simple("PONG"),
    }
    Ok(())
}

fn get<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [key] = arguments.exactly()?;
    database.get(key, |value| replies.string(value));
    Ok(())
}

fn set<'a>(
    mut arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [key, value] = arguments.first()?;
    let (mut expires, mut condition) = (None, Condition::Always);
    while let Some(option) = arguments.rest.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if condition == Condition::Always && is("NX") {
            condition = Condition::Absent;
        } else if condition == Condition::Always && is("XX") {
            condition = Condition::Present;
        } else if expires.is_none() && (is("EX") || is("PX")) {
            let time = number(arguments.rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
            let time = u64::try_from(time).ok().filter(|time| *time > 0);
            let unit = if is("EX") { Duration::from_secs } else { Duration::from_millis };
            let at = time.and_then(|time| Instant::now().checked_add(unit(time)));
            expires = Some(at.ok_or(Failure::Text("ERR invalid expire time in 'set' command"))?);
        } else {
            return Err(SYNTAX);
        }
    }
    if database.set(key, value, expires, condition)? {
        replies.simple("OK");
    } else {
        replies.string(None);
    }
    Ok(())
}

/// Replies with the number of keys for which `is` returns true.
fn count<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    is: impl Fn(&[u8]) -> bool,
    replies: &mut Replies,
) -> Result {
    if arguments.rest.len() == 0 {
        return Err(Failure::Arguments);
    }
    replies.integer(arguments.rest.filter(|key| is(key)).count() as i64);
    Ok(())
}

fn increment<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [key] = arguments.exactly()?;
    replies.integer(database.add(key, 1)?);
    Ok(())
}

fn expire<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [key, seconds] = arguments.exactly()?;
    let seconds = number(seconds).ok_or(NOT_AN_INTEGER)?;
    let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let at = Instant::now().checked_add(time);
    let at = at.ok_or(Failure::Text("ERR invalid expire time in 'expire' command"))?;
    replies.integer(database.expire(key, at).into());
    Ok(())
}

fn time_to_live<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [key] = arguments.exactly()?;
    replies.integer(match database.time_left(key) {
        None => -2,
        Some(None) => -1,
        Some(Some(left)) => (left + Duration::from_millis(500)).as_secs() as i64,
    });
    Ok(())
}

fn publish<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Database,
    replies: &mut Replies,
) -> Result {
    let [channel, message] = arguments.exactly()?;
    replies.integer(database.publish(channel, message) as i64);
    Ok(())
}

fn subscribe<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    database: &Arc<Database>,
    subscriber: &mut Option<Subscriber>,
    replies: &mut Replies,
) -> Result {
    if arguments.rest.len() == 0 {
        return Err(Failure::Arguments);
    }
    let subscriber = subscriber.get_or_insert_with(|| database.subscriber());
    for channel in arguments.rest {
        if subscriber.channels().len() == CHANNELS_MAX {
            return Err(Failure::Text("ERR too many channels"));
        }
        subscriber.subscribe(channel)?;
        subscription(b"subscribe", Some(channel), subscriber, replies);
    }
    Ok(())
}

fn unsubscribe<'a>(
    arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    subscriber: &mut Option<Subscriber>,
    replies: &mut Replies,
) -> Result {
    let Some(subscriber) = subscriber else {
        replies.array(3);
        replies.string(Some(b"unsubscribe"));
        replies.string(None);
        replies.integer(0);
        return Ok(());
    };
    let mut channels: Vec<Box<[u8]>> = arguments.rest.map(Box::from).collect();
    if channels.is_empty() {
        channels = subscriber.channels().to_vec();
    }
    if channels.is_empty() {
        subscription(b"unsubscribe", None, subscriber, replies);
    }
    for channel in channels {
        subscriber.unsubscribe(&channel);
        subscription(b"unsubscribe", Some(&channel), subscriber, replies);
    }
    Ok(())
}

/// Writes the reply for a channel that was added or removed.
fn subscription(kind: &[u8], channel: Option<&[u8]>, after: &Subscriber, replies: &mut Replies) {
    replies.array(3);
    replies.string(Some(kind));
    replies.string(channel);
    replies.integer(after.channels().len() as i64);
}

/// Answers the queries of `redis-benchmark`, which prints the answers.
fn configuration<'a>(
    mut arguments: Arguments<impl ExactSizeIterator<Item = &'a [u8]>>,
    replies: &mut Replies,
) -> Result {
    let [what] = arguments.first()?;
    if !what.eq_ignore_ascii_case(b"GET") {
        return Err(Failure::Text("ERR unknown subcommand; there is GET"));
    }
    let values = arguments.rest.filter_map(|name| {
        let its = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // The server never saves anything.
        (its("save").then_some(("save", ""))).or(its("appendonly").then_some(("appendonly", "no")))
    });
    let values: Vec<(&str, &str)> = values.collect();
    replies.array(2 * values.len());
    for (name, value) in values {
        replies.string(Some(name.as_bytes()));
        replies.string(Some(value.as_bytes()));
    }
    Ok(())
}
