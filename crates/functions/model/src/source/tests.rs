use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use unlade_testkit::{Random, cases};

use super::message::{event, received, reported};
use super::poller::WAIT_MAX;
use super::*;
use crate::destination::Target;

fn queue() -> Target {
    Target::parse("arn:aws:sqs:eu-west-1:123456789012:q").unwrap()
}

fn message(id: &str, receipt: u64, bytes: usize) -> Message {
    let record = "x".repeat(bytes);
    Message { id: id.to_owned(), receipt: receipt.to_string(), record }
}

fn settings(batch_size: usize, window_s: u64, concurrency: usize) -> Settings {
    let window = Duration::from_secs(window_s);
    Settings { batch_size, window, concurrency, bytes_max: 1000 }
}

#[test]
fn messages_become_records_of_lambdas() {
    let answer = json!({"Messages": [{
        "MessageId": "m-1", "ReceiptHandle": "r-1", "Body": "{\"a\": 1}", "MD5OfBody": "sum",
        "Attributes": {"ApproximateReceiveCount": "1", "SenderId": "s"},
        "MD5OfMessageAttributes": "other",
        "MessageAttributes": {
            "n": {"StringValue": "7", "DataType": "Number"},
            "b": {"BinaryValue": "AAE=", "DataType": "Binary"},
        },
    }]});
    let found = received(answer.to_string().as_bytes(), &queue()).unwrap();
    let event: Value = serde_json::from_slice(&event(&found)).unwrap();
    assert_eq!(
        event,
        json!({"Records": [{
            "messageId": "m-1", "receiptHandle": "r-1", "body": "{\"a\": 1}", "md5OfBody": "sum",
            "attributes": {"ApproximateReceiveCount": "1", "SenderId": "s"},
            "md5OfMessageAttributes": "other",
            "messageAttributes": {
                "n": {"stringValue": "7", "dataType": "Number",
                      "stringListValues": [], "binaryListValues": []},
                "b": {"binaryValue": "AAE=", "dataType": "Binary",
                      "stringListValues": [], "binaryListValues": []},
            },
            "eventSource": "aws:sqs", "eventSourceARN": queue().arn, "awsRegion": "eu-west-1",
        }]})
    );
    assert_eq!(received(b"{}", &queue()), Ok(Vec::new()));
    assert_eq!(received(br#"{"Messages": null}"#, &queue()), Ok(Vec::new()));
    for wrong in ["", "[1]x", r#"{"Messages": 1}"#, r#"{"Messages": [{"MessageId": "a"}]}"#] {
        assert!(received(wrong.as_bytes(), &queue()).is_err(), "{wrong}");
    }
    assert_eq!(super::message::event(&[]), b"{\"Records\":[]}");
}

#[test]
fn reported_failures_are_of_the_batch_or_the_batch_has_failed() {
    let batch = [message("a", 1, 1), message("b", 2, 1)];
    let of = |result: &str| reported(result.as_bytes(), &batch);
    let handled = |ids: &[&str]| {
        let failed: BTreeSet<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        Outcome::Handled { failed }
    };
    for fine in
        ["", "null", "{}", "3", r#"{"batchItemFailures": null}"#, r#"{"batchItemFailures": []}"#]
    {
        assert_eq!(of(fine), handled(&[]), "{fine}");
    }
    assert_eq!(of(r#"{"batchItemFailures": [{"itemIdentifier": "b"}]}"#), handled(&["b"]));
    for wrong in [
        "{",
        r#"{"batchItemFailures": {}}"#,
        r#"{"batchItemFailures": [{}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": null}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": ""}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": "c"}]}"#,
        r#"{"batchItemFailures": [{"itemIdentifier": "a"}, {"id": "b"}]}"#,
    ] {
        assert_eq!(of(wrong), Outcome::Failed, "{wrong}");
    }
}

#[test]
fn a_batch_is_received_invoked_and_settled() {
    let now = Instant::now();
    let mut poller = Poller::new(settings(10, 0, 1));
    assert!(poller.is_idle() && poller.due(now).is_none());
    let ask = Action::Receive { max: 10, wait: WAIT_MAX };
    assert_eq!(poller.set(settings(10, 0, 1), true, now), std::slice::from_ref(&ask));
    let (a, b) = (message("a", 1, 1), message("b", 2, 1));
    let batch = vec![a.clone(), b.clone()];
    let invoke = Action::Invoke { batch: 1, messages: batch.clone() };
    assert_eq!(poller.received(batch, now), [invoke], "one batch at a time");
    let failed = BTreeSet::from(["b".to_owned()]);
    let settle = Action::Settle {
        batch: 1,
        delete: vec![a],
        left: 1,
        release: Vec::new(),
        after: Duration::ZERO,
    };
    assert_eq!(poller.invoked(1, Outcome::Handled { failed }, now), [settle]);
    assert!(!poller.is_idle(), "the deletion is awaited");
    assert_eq!(poller.settled(1, now), [ask]);
    assert!(poller.is_idle());
    // While the request is open, the poller is disabled: what comes is released.
    assert!(poller.set(settings(10, 0, 1), false, now).is_empty());
    let late = poller.received(vec![b.clone()], now);
    let (delete, left, after) = (Vec::new(), 0, Duration::ZERO);
    assert_eq!(late, [Action::Settle { batch: 2, delete, left, release: vec![b], after }]);
    assert!(!poller.is_idle());
    assert!(poller.settled(2, now).is_empty() && poller.is_idle());
}

/// The inputs of a poller.
#[derive(Clone, Debug)]
enum Input {
    Set(Settings, bool),
    Received(Vec<Message>),
    ReceiveFailed(bool),
    Invoked(u64, Outcome),
    Settled(u64),
    Tick,
}

/// The place of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    Running(u64),
    Settling(u64),
    Gone,
}

/// The same decisions, made anew each time from everything that has happened.
struct Oracle {
    history: Vec<(Instant, Input)>,
    /// The start of each request for messages.
    asked: Vec<Instant>,
    messages: Vec<(Message, Instant, Place)>,
    batches: u64,
}

impl Oracle {
    /// The inputs since the last change of the settings, and that change before them.
    fn recent(&self) -> &[(Instant, Input)] {
        let is_set = |(_, input): &(Instant, Input)| matches!(input, Input::Set(..));
        let at = self.history.iter().rposition(is_set).unwrap();
        &self.history[at..]
    }

    fn settings(&self) -> (Settings, bool) {
        let Input::Set(settings, is_enabled) = self.recent()[0].1 else { unreachable!() };
        (settings, is_enabled)
    }

    fn is_asking(&self) -> bool {
        let is_answer = |(_, input): &&(Instant, Input)| {
            matches!(input, Input::Received(_) | Input::ReceiveFailed(_))
        };
        self.asked.len() > self.history.iter().filter(is_answer).count()
    }

    /// The time of the request that the answer at this place of the history is for.
    fn asked_at(&self, at: usize) -> Instant {
        let is_answer = |(_, input): &&(Instant, Input)| {
            matches!(input, Input::Received(_) | Input::ReceiveFailed(_))
        };
        self.asked[self.history[..at].iter().filter(is_answer).count()]
    }

    /// The pause that each input since the last change has caused.
    fn pauses(&self) -> Vec<(Instant, Duration)> {
        let first = self.history.len() - self.recent().len();
        let (mut pauses, mut asks, mut calls) = (Vec::new(), 0, 0);
        for (at, (time, input)) in self.history.iter().enumerate().skip(first) {
            let doubled = |errors: &mut u32| {
                let seconds = 2_u64.pow((*errors).min(9)).min(60);
                *errors += 1;
                (*time, Duration::from_secs(seconds))
            };
            match input {
                Input::Received(messages) => {
                    asks = 0;
                    let second = Duration::from_secs(1);
                    if messages.is_empty() && *time < self.asked_at(at) + second {
                        pauses.push((*time, second));
                    }
                }
                Input::ReceiveFailed(_) => pauses.push(doubled(&mut asks)),
                Input::Invoked(_, Outcome::Handled { .. }) => calls = 0,
                Input::Invoked(..) => pauses.push(doubled(&mut calls)),
                _ => {}
            }
        }
        pauses
    }

    fn open(&self) -> BTreeSet<u64> {
        let number = |(_, _, place): &(Message, Instant, Place)| match place {
            Place::Running(batch) | Place::Settling(batch) => Some(*batch),
            _ => None,
        };
        self.messages.iter().filter_map(number).collect()
    }

    fn all_in(&self, place: &Place) -> Vec<usize> {
        let here = self.messages.iter().enumerate().filter(|(_, (_, _, own))| own == place);
        here.map(|(at, _)| at).collect()
    }

    fn apply(&mut self, input: &Input, now: Instant) -> Vec<Action> {
        self.history.push((now, input.clone()));
        let mut actions = Vec::new();
        match input {
            Input::Received(messages) => {
                for message in messages {
                    let waiting = self.all_in(&Place::Waiting);
                    let same = waiting.iter().find(|at| self.messages[**at].0.id == message.id);
                    match same {
                        Some(at) => self.messages[*at].0 = message.clone(),
                        None => self.messages.push((message.clone(), now, Place::Waiting)),
                    }
                }
            }
            Input::Invoked(batch, outcome) => actions.push(self.invoked(*batch, outcome)),
            Input::Settled(batch) => {
                for at in self.all_in(&Place::Settling(*batch)) {
                    self.messages[at].2 = Place::Gone;
                }
            }
            Input::Set(..) | Input::ReceiveFailed(_) | Input::Tick => {}
        }
        self.step(&mut actions, now);
        actions
    }

    fn invoked(&mut self, batch: u64, outcome: &Outcome) -> Action {
        let (mut delete, mut release, mut left, mut after) =
            (Vec::new(), Vec::new(), 0, Duration::ZERO);
        for at in self.all_in(&Place::Running(batch)) {
            let message = self.messages[at].0.clone();
            self.messages[at].2 = Place::Settling(batch);
            match outcome {
                Outcome::Handled { failed } if !failed.contains(&message.id) => {
                    delete.push(message)
                }
                Outcome::Handled { .. } | Outcome::Failed => left += 1,
                Outcome::Refused => {
                    release.push(message);
                    after = self.pauses().last().unwrap().1;
                }
            }
        }
        Action::Settle { batch, delete, left, release, after }
    }

    fn step(&mut self, actions: &mut Vec<Action>, now: Instant) {
        let (settings, is_enabled) = self.settings();
        let waiting = self.all_in(&Place::Waiting);
        if !is_enabled {
            if !waiting.is_empty() {
                self.batches += 1;
                let batch = self.batches;
                let release = waiting.iter().map(|at| self.messages[*at].0.clone()).collect();
                waiting.iter().for_each(|at| self.messages[*at].2 = Place::Settling(batch));
                let (delete, left, after) = (Vec::new(), 0, Duration::ZERO);
                actions.push(Action::Settle { batch, delete, left, release, after });
            }
            return;
        }
        while self.open().len() < settings.concurrency {
            let waiting = self.all_in(&Place::Waiting);
            let Some(first) = waiting.first() else { break };
            let fits = |count: &usize| {
                let bytes = |at: &usize| self.messages[*at].0.record.len() + 1;
                *count == 1
                    || waiting[..*count].iter().map(bytes).sum::<usize>() <= settings.bytes_max
            };
            let most = waiting.len().min(settings.batch_size);
            let count = (1..=most).rev().find(fits).unwrap();
            let is_full = count == settings.batch_size || count < waiting.len();
            if !is_full && now < self.messages[*first].1 + settings.window {
                break;
            }
            self.batches += 1;
            let batch = self.batches;
            let messages = waiting[..count].iter().map(|at| self.messages[*at].0.clone()).collect();
            waiting[..count].iter().for_each(|at| self.messages[*at].2 = Place::Running(batch));
            actions.push(Action::Invoke { batch, messages });
        }
        let waiting = self.all_in(&Place::Waiting);
        let is_paused = self.pauses().iter().any(|(at, pause)| now < *at + *pause);
        let is_full = waiting.len() >= settings.batch_size;
        if self.is_asking() || is_paused || is_full || self.open().len() >= settings.concurrency {
            return;
        }
        let rest = waiting.first().map(|at| {
            (self.messages[*at].1 + settings.window).saturating_duration_since(now).as_secs()
        });
        if rest == Some(0) {
            return;
        }
        let is_too_long =
            |(_, input): &&(Instant, Input)| matches!(input, Input::ReceiveFailed(true));
        let halvings = self.recent().iter().filter(is_too_long).count();
        let most = [10, 5, 2, 1].get(halvings).copied().unwrap_or(1);
        let max = most.min(settings.batch_size - waiting.len());
        let wait = Duration::from_secs(rest.unwrap_or(20).min(20));
        self.asked.push(now);
        actions.push(Action::Receive { max, wait });
    }
}

fn any_settings(random: &mut Random) -> Settings {
    let batch_size = [1, 2, 10, 25][random.below(4) as usize];
    let window_s = [0, 0, 1, 3, 30][random.below(5) as usize];
    settings(batch_size, window_s, 1 + random.below(3) as usize)
}

fn any_outcome(random: &mut Random, batch: &[Message]) -> Outcome {
    match random.below(6) {
        0 => Outcome::Failed,
        1 => Outcome::Refused,
        _ => {
            let failed = batch.iter().filter(|_| random.below(4) == 0);
            Outcome::Handled { failed: failed.map(|message| message.id.clone()).collect() }
        }
    }
}

/// An input that may come now.
fn any_input(random: &mut Random, oracle: &Oracle, next: &mut u64) -> Input {
    let running: Vec<u64> = oracle
        .open()
        .into_iter()
        .filter(|n| !oracle.all_in(&Place::Running(*n)).is_empty())
        .collect();
    let settling: Vec<u64> = oracle.open().into_iter().filter(|n| !running.contains(n)).collect();
    let pick = |random: &mut Random, all: &[u64]| all[random.below(all.len() as u64) as usize];
    match random.below(12) {
        0 if random.below(3) == 0 => Input::Set(any_settings(random), random.below(4) > 0),
        1..=4 if oracle.is_asking() => {
            let count = random.below(oracle.settings().0.batch_size.min(10) as u64 + 1);
            let mut of_queue = || {
                *next += 1;
                // Some have been received before, and have become visible again.
                let id = if random.below(5) == 0 { random.below(*next) } else { *next };
                let bytes = if random.below(9) == 0 { 1200 } else { random.below(300) };
                message(&format!("m-{id}"), *next, bytes as usize)
            };
            let mut messages: Vec<Message> = (0..count).map(|_| of_queue()).collect();
            let mut seen = BTreeSet::new();
            messages.retain(|message| seen.insert(message.id.clone()));
            Input::Received(messages)
        }
        5 if oracle.is_asking() => Input::ReceiveFailed(random.below(2) == 0),
        6 | 7 if !running.is_empty() => {
            let batch = pick(random, &running);
            let messages = oracle.all_in(&Place::Running(batch));
            let messages: Vec<_> =
                messages.iter().map(|at| oracle.messages[*at].0.clone()).collect();
            Input::Invoked(batch, any_outcome(random, &messages))
        }
        8 | 9 if !settling.is_empty() => Input::Settled(pick(random, &settling)),
        _ => Input::Tick,
    }
}

#[test]
fn a_poller_decides_what_its_history_says() {
    cases(300, |random| {
        let mut now = Instant::now();
        let mut poller = Poller::new(settings(1, 0, 1));
        let (history, asked, messages) = (Vec::new(), Vec::new(), Vec::new());
        let mut oracle = Oracle { history, asked, messages, batches: 0 };
        let mut next = 0;
        for turn in 0..120 {
            let input = match turn {
                0 => Input::Set(any_settings(random), true),
                _ => any_input(random, &oracle, &mut next),
            };
            let due = oracle.apply(&input, now);
            let actions = match input.clone() {
                Input::Set(settings, is_enabled) => poller.set(settings, is_enabled, now),
                Input::Received(messages) => poller.received(messages, now),
                Input::ReceiveFailed(is_too_long) => poller.receive_failed(is_too_long, now),
                Input::Invoked(batch, outcome) => poller.invoked(batch, outcome, now),
                Input::Settled(batch) => poller.settled(batch, now),
                Input::Tick => poller.tick(now),
            };
            assert_eq!(actions, due, "turn {turn}: {input:?}");
            let is_idle = oracle.open().is_empty() && oracle.all_in(&Place::Waiting).is_empty();
            assert_eq!(poller.is_idle(), is_idle);
            for action in &actions {
                if let Action::Invoke { messages, .. } = action {
                    let ids: BTreeSet<_> = messages.iter().map(|message| &message.id).collect();
                    assert_eq!(ids.len(), messages.len(), "no message twice in a batch");
                }
            }
            // Something is awaited, whatever has happened: the poller cannot stop for ever.
            let is_awaiting = oracle.is_asking() || !oracle.open().is_empty();
            let is_enabled = oracle.settings().1;
            assert!(!is_enabled || is_awaiting || poller.due(now).is_some(), "turn {turn}");
            now = match poller.due(now) {
                Some(due) if random.below(3) == 0 => due,
                _ => now + Duration::from_millis(random.below(1500)),
            };
        }
    });
}
