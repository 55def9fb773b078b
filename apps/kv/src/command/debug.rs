//! `DEBUG`, for tests of clients and of the server; and `FUNCTION`, which has nothing to do here.

use std::time::Duration;

use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};

/// Maximum time for which a client can stop the server.
const SLEEP_S_MAX: f64 = 60.0;

/// Fails unless the server was started with these commands.
fn check<C: Copies>(context: &Context<'_, C>) -> Answer {
    let said = "DEBUG command not allowed: start unlade-kv with --debug-commands";
    context.state.allows_debug.then_some(()).ok_or_else(|| Failure::text(said))
}

/// `DEBUG SLEEP seconds`: no client is served during this time.
pub(crate) fn sleep<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    check(context)?;
    let text = String::from_utf8_lossy(context.word(2));
    let seconds = text.parse().ok().filter(|it| (0.0..=SLEEP_S_MAX).contains(it));
    std::thread::sleep(Duration::from_secs_f64(seconds.ok_or(Failure::NotAFloat)?));
    context.state.read_clock();
    context.out.simple("OK");
    Ok(())
}

/// `DEBUG SET-ACTIVE-EXPIRE 0|1`.
pub(crate) fn set_active_expire<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    check(context)?;
    context.state.expires_actively = match context.word(2) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Failure::Syntax),
    };
    context.out.simple("OK");
    Ok(())
}

/// `DEBUG PROTOCOL type`: an answer of that type.
pub(crate) fn protocol<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    check(context)?;
    let out = &mut *context.out;
    match context.words.get(2).to_ascii_lowercase().as_slice() {
        b"string" => out.bulk(b"Hello World"),
        b"integer" => out.integer(12_345),
        b"double" => out.typed(b',', "3.141"),
        b"null" => out.null(),
        b"array" => {
            out.array(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"map" => {
            out.map(3);
            for number in 0..3 {
                out.integer(number);
                out.boolean(number == 1);
            }
        }
        b"attrib" => {
            if out.is_resp3 {
                out.attributes(1);
                out.bulk(b"key-popularity");
                out.array(2);
                out.bulk(b"key:123");
                out.integer(90);
            }
            out.bulk(b"Some real reply following the attribute");
        }
        b"push" if !out.is_resp3 => {
            return Err(Failure::text("RESP2 has no messages of the server: use HELLO 3"));
        }
        b"push" => {
            out.message(2);
            out.bulk(b"server-cpu-usage");
            out.integer(42);
        }
        b"verbatim" => out.verbatim("This is a verbatim\nstring"),
        b"true" => out.boolean(true),
        b"false" => out.boolean(false),
        b"bignum" => out.typed(b'(', "1234567999999999999999999999999999999"),
        _ => {
            let said = "Wrong protocol type name. Please use one of the following: \
                        string|integer|double|null|array|set|map|attrib|push|verbatim|true|false|\
                        bignum";
            return Err(Failure::text(said));
        }
    }
    Ok(())
}

/// `FUNCTION FLUSH [ASYNC|SYNC]`: there are no functions.
pub(crate) fn function_flush<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let how = context.word(2);
    let is_known = how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
    if context.words.len() > 3 || context.words.len() == 3 && !is_known {
        return Err(Failure::Syntax);
    }
    context.out.simple("OK");
    Ok(())
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`: there are no functions.
pub(crate) fn function_list<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let mut words = context.words.from(2);
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"withcode" => {}
            b"libraryname" => {
                let said = "library name argument was not given";
                words.next().ok_or_else(|| Failure::text(said))?;
            }
            _ => {
                let said = format!("Unknown argument {}", String::from_utf8_lossy(word));
                return Err(Failure::text(said));
            }
        }
    }
    context.out.array(0);
    Ok(())
}
