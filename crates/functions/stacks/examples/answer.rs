//! Answers requests of CloudFormation's API, without a server: a form a line in, a status and the XML a line
//! out. Queues exist at once; the second one with the same value of an export does not.

use std::error::Error;
use std::io::{self, BufRead, Write};

use unlade_fn_stacks::{Given, Outcome, Place, Stacks, Work, query, xml};

fn main() -> Result<(), Box<dyn Error>> {
    let place = Place { region: "us-east-1".to_owned(), account: "000000000000".to_owned() };
    let mut stacks = Stacks::new(place, []);
    let mut out = io::stdout().lock();
    for (now_ms, line) in (1_800_000_000_000..).zip(io::stdin().lock().lines()) {
        let unique = format!("{now_ms:032}");
        let given = Given { now_ms, unique: &unique, template: None };
        let reply =
            query::decode(line?.as_bytes()).and_then(|request| stacks.call(&request, given));
        let (status, text) = match reply {
            Ok(reply) => {
                if let Some(id) = reply.changed {
                    carry_out(&mut stacks, &id, now_ms)?;
                }
                (200, reply.xml)
            }
            Err(failure) => (failure.kind.status(), xml::failure(&failure, &unique)),
        };
        let text = text.replace('\\', "\\\\").replace('\n', "\\n");
        writeln!(out, "{status} {text}")?;
    }
    Ok(())
}

fn carry_out(stacks: &mut Stacks, id: &str, now_ms: u64) -> Result<(), Box<dyn Error>> {
    while let Some(action) = stacks.next(id, now_ms) {
        let physical_id = match &action.work {
            Work::Create { name, .. } => name.clone(),
            Work::Update { physical_id, .. } | Work::Delete { physical_id, .. } => {
                physical_id.clone()
            }
        };
        let outcome = Outcome::Done { physical_id, attributes: Default::default() };
        stacks.outcome(id, action.step, outcome, now_ms)?;
    }
    Ok(())
}
