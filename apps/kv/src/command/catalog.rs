//! `COMMAND`: the table of commands, as clients can read it; and `HELP` of containers.

use crate::context::Context;
use crate::copies::{Arrival, Copies};
use crate::failure::{Answer, Failure};
use crate::output::Output;
use crate::pattern::is_match;
use crate::table::{COMMANDS, Command, Flags, find};

pub(crate) fn all<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.out.array(COMMANDS.len());
    COMMANDS.iter().for_each(|command| describe(command, context.out));
    Ok(())
}

/// Appends the description of a command: ten elements, of which the categories of access control,
/// the hints and the specifications of keys are empty.
fn describe<I: Arrival>(command: &Command, out: &mut Output<I>) {
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.integer(command.arity.into());
    let shown = || Flags::SHOWN.iter().filter(|(flag, _)| command.flags.has(*flag));
    out.set(shown().count());
    shown().for_each(|(_, name)| out.simple(name));
    out.integer(command.keys.first.into());
    out.integer(command.keys.last.into());
    out.integer(command.keys.step.into());
    out.set(0);
    out.array(0);
    out.array(0);
    out.array(command.subcommands.len());
    command.subcommands.iter().for_each(|subcommand| describe(subcommand, out));
}

/// Returns the command with this name, or this name of a subcommand.
fn named(name: &[u8]) -> Option<&'static Command> {
    let mut parts = name.splitn(2, |byte| *byte == b'|');
    let (first, second) = (parts.next()?, parts.next());
    let command = find(first, second.unwrap_or_default())?;
    // A container that does not have the subcommand is found instead of it.
    (second.is_none() || command.name.contains('|')).then_some(command)
}

pub(crate) fn count<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.out.integer(COMMANDS.len() as i64);
    Ok(())
}

/// `COMMAND INFO [name …]`.
pub(crate) fn info<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    if context.words.len() == 2 {
        return all(context);
    }
    context.out.array(context.words.len() - 2);
    for name in context.words.from(2) {
        match named(name) {
            Some(command) => describe(command, context.out),
            None => context.out.null(),
        }
    }
    Ok(())
}

/// `COMMAND DOCS [name …]`. There is no documentation; interactive clients work without it.
pub(crate) fn docs<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.out.map(0);
    Ok(())
}

/// `COMMAND LIST [FILTERBY PATTERN pattern]`.
pub(crate) fn list<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let is_filter = context.word(2).eq_ignore_ascii_case(b"filterby")
        && context.word(3).eq_ignore_ascii_case(b"pattern");
    let pattern = match context.words.len() {
        2 => b"*".to_vec(),
        5 if is_filter => context.word(4).to_ascii_lowercase(),
        _ => return Err(Failure::Syntax),
    };
    let all = COMMANDS.iter().flat_map(|it| std::iter::once(it).chain(it.subcommands));
    let shown: Vec<_> = all.filter(|it| is_match(&pattern, it.name.as_bytes())).collect();
    context.out.array(shown.len());
    shown.iter().for_each(|command| context.out.bulk(command.name.as_bytes()));
    Ok(())
}

/// `COMMAND GETKEYS name argument …`.
pub(crate) fn getkeys<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let command = find(context.word(2), context.word(3));
    let command = command.ok_or_else(|| Failure::text("Invalid command specified"))?;
    if command.keys.first == 0 {
        return Err(Failure::text("The command has no key arguments"));
    }
    let len = context.words.len() - 2;
    if !command.takes(len) {
        return Err(Failure::text("Invalid number of arguments specified for command"));
    }
    let keys: Vec<_> = command.keys(len).map(|index| context.word(index + 2)).collect();
    context.out.array(keys.len());
    keys.iter().for_each(|key| context.out.bulk(key));
    Ok(())
}

/// `HELP` of a container: its subcommands.
pub(crate) fn help<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let container = context.command.name.split('|').next().unwrap_or_default();
    let Some(command) = find(container.as_bytes(), b"") else { return Err(Failure::Syntax) };
    context.out.array(1 + command.subcommands.len());
    let name = container.to_ascii_uppercase();
    context.out.simple(&format!("{name} <subcommand> [<arg> ...]. Subcommands are:"));
    for subcommand in command.subcommands {
        context.out.simple(&subcommand.word().to_ascii_uppercase());
    }
    Ok(())
}
