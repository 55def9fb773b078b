//! Random requests of all commands, whose answers depend neither on the clock nor on the order of
//! keys.

use super::pattern;
use unlade_testkit::Random;

/// Commands whose shorter requests depend on the server, the clock or the order of keys.
const WHOLE: [&[u8]; 5] = [b"SCAN", b"TIME", b"RANDOMKEY", b"COMMAND", b"HELLO"];

pub struct Requests {
    pub random: Random,
    /// Number of lifetimes so far.
    lifetimes: u64,
}

impl Requests {
    pub fn new(seed: u64) -> Requests {
        Requests { random: Random::new(seed), lifetimes: 1 }
    }

    /// Returns a lifetime in thousands of seconds that no other request has: conditions compare
    /// lifetimes, and must not depend on the milliseconds between two requests.
    fn unique(&mut self, zeros: &str) -> Vec<u8> {
        self.lifetimes += 1;
        format!("{}{zeros}", self.lifetimes).into_bytes()
    }

    fn of(&mut self, choices: &[&str]) -> Vec<u8> {
        self.random.pick(choices).as_bytes().to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        self.of(&["a", "b", "c", "d", "a long key", "\r\n", ""])
    }

    fn keys(&mut self, at_least: u64) -> Vec<Vec<u8>> {
        (0..at_least + self.random.below(3)).map(|_| self.key()).collect()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(12) {
            0 => 0,
            1 => 31_000 + self.random.below(3000u64),
            2 => 8_000 + self.random.below(400),
            3 => self.random.below(200_000),
            4..=7 => return self.number(),
            _ => self.random.below(60),
        };
        pattern(len as usize, self.random.below(256) as usize)
    }

    fn number(&mut self) -> Vec<u8> {
        self.of(&[
            "100",
            "1000",
            "0",
            "-5",
            "x",
            "",
            "9223372036854775807",
            "-9223372036854775808",
            "1.5",
            "99999999999999999",
            "007",
            "-0",
            "+1",
            " 1",
            "1e3",
            "0.1",
            "-3.75",
            "5",
            "92233720368547758080",
            "3.0e-2",
            "inf",
            "12345678901234.5678",
        ])
    }

    fn small(&mut self) -> Vec<u8> {
        self.of(&["0", "1", "2", "7", "30", "-1", "-2", "-30", "100", "x", "40000"])
    }

    fn database(&mut self) -> Vec<u8> {
        self.of(&["0", "0", "0", "1", "2", "16", "-1", "x"])
    }

    /// A lifetime: long enough for the difference between two clocks not to matter.
    fn lifetime(&mut self, words: &mut Vec<Vec<u8>>) {
        let option = self.of(&["EX", "px", "EXAT", "pxat"]);
        words.push(option.clone());
        words.push(match option.to_ascii_lowercase().as_slice() {
            b"ex" => self.of(&["100", "1000", "0", "-1", "x", "9223372036854775", "007"]),
            b"px" => self.of(&["100000", "1000000", "0", "-1", "x", "9223372036854775807"]),
            b"exat" => self.of(&["99999999999", "0", "x", "9223372036854776"]),
            _ => self.of(&["99999999999999", "-7", "x"]),
        });
    }

    fn options(&mut self, choices: &[&str], words: &mut Vec<Vec<u8>>) {
        while self.random.below(3) == 0 {
            match self.random.below(4) {
                0 => self.lifetime(words),
                _ => words.push(self.of(choices)),
            }
        }
    }

    /// Returns a request. Few of them are wrong.
    pub fn next(&mut self) -> Vec<Vec<u8>> {
        let mut words = match self.random.below(10) {
            0..=3 => self.values(),
            4..=5 => self.parts(),
            6..=7 => self.names(),
            8 => self.times(),
            _ => self.others(),
        };
        match self.random.below(60) {
            0 => words.push(self.of(&["a", "b", ""])),
            1 if words.len() > 1 && !WHOLE.contains(&&*words[0]) => drop(words.pop()),
            _ => {}
        }
        words
    }

    fn values(&mut self) -> Vec<Vec<u8>> {
        let name = self.of(&[
            "SET", "set", "SET", "GET", "GeT", "MGET", "SETNX", "SETEX", "PSETEX", "GETSET",
            "GETDEL", "GETEX", "MSET", "MSETNX", "STRLEN",
        ]);
        let mut words = vec![name.to_ascii_uppercase()];
        match words[0].as_slice() {
            b"SET" => {
                words.extend([self.key(), self.value()]);
                self.options(&["NX", "xx", "GET", "KEEPTTL", "PERSIST", "no"], &mut words);
            }
            b"SETNX" | b"GETSET" => words.extend([self.key(), self.value()]),
            b"SETEX" => {
                let time = self.of(&["100", "0", "-3", "x", "9223372036854775807"]);
                words.extend([self.key(), time, self.value()]);
            }
            b"PSETEX" => {
                let time = self.of(&["100000", "0", "-3", "x"]);
                words.extend([self.key(), time, self.value()]);
            }
            b"GETEX" => {
                words.push(self.key());
                self.options(&["PERSIST", "NX", "GET"], &mut words);
            }
            b"MGET" => words.extend(self.keys(1)),
            b"MSET" | b"MSETNX" => {
                for key in self.keys(1) {
                    words.extend([key, self.value()]);
                }
            }
            _ => words.push(self.key()),
        }
        words[0] = name;
        words
    }

    fn parts(&mut self) -> Vec<Vec<u8>> {
        let name = self.of(&[
            "APPEND",
            "APPEND",
            "SETRANGE",
            "GETRANGE",
            "SUBSTR",
            "INCR",
            "DECR",
            "INCRBY",
            "DECRBY",
            "INCRBYFLOAT",
            "INCRBYFLOAT",
            "SETBIT",
            "GETBIT",
            "BITCOUNT",
            "BITPOS",
            "BITOP",
            "LCS",
        ]);
        let mut words = vec![name];
        match words[0].as_slice() {
            b"APPEND" => words.extend([self.key(), self.value()]),
            b"SETRANGE" => {
                let offset = self.of(&["0", "1", "5", "-1", "x", "100", "33000", "536870912"]);
                let part = self.of(&["", "x", "part", "a longer part of a value"]);
                words.extend([self.key(), offset, part]);
            }
            b"GETRANGE" | b"SUBSTR" => {
                words.extend([self.key(), self.small(), self.small()]);
            }
            b"INCRBY" | b"DECRBY" | b"INCRBYFLOAT" => words.extend([self.key(), self.number()]),
            b"SETBIT" => {
                let offset = self.of(&["0", "7", "8", "1000", "-1", "x", "4294967296"]);
                words.extend([self.key(), offset, self.of(&["0", "1", "1", "2"])]);
            }
            b"GETBIT" => words.extend([self.key(), self.of(&["0", "7", "100", "-1", "x"])]),
            b"BITCOUNT" | b"BITPOS" => {
                let is_position = words[0] == b"BITPOS";
                words.push(self.key());
                if is_position {
                    words.push(self.of(&["0", "1", "1", "2", "x"]));
                }
                for _ in 0..self.random.below(3) {
                    words.push(self.small());
                }
                if self.random.below(3) == 0 {
                    words.push(self.of(&["BIT", "byte", "no"]));
                }
            }
            b"BITOP" => {
                words.extend([self.of(&["AND", "or", "XOR", "NOT", "no"]), self.key()]);
                words.extend(self.keys(1));
            }
            b"LCS" => return self.lcs(),
            _ => words.push(self.key()),
        }
        words
    }

    /// The values are short: the table is their product.
    fn lcs(&mut self) -> Vec<Vec<u8>> {
        let keys = [self.of(&["lcs 1", "lcs 2", "none"]), self.of(&["lcs 1", "lcs 2"])];
        let [first, second] = keys;
        if self.random.below(3) == 0 {
            let len = self.random.below(30u64);
            let text = (0..len).map(|_| self.random.pick(b"abc")).collect();
            return vec![b"SET".to_vec(), second, text];
        }
        let mut words = vec![b"LCS".to_vec(), first, second];
        while self.random.below(2) == 0 {
            words.push(self.of(&["LEN", "IDX", "IDX", "WITHMATCHLEN", "MINMATCHLEN"]));
            if words.last().is_some_and(|word| word == b"MINMATCHLEN") {
                words.push(self.of(&["1", "2", "3", "x"]));
            }
        }
        words
    }

    fn names(&mut self) -> Vec<Vec<u8>> {
        let name = self.of(&[
            "DEL", "UNLINK", "EXISTS", "TOUCH", "TYPE", "RENAME", "RENAMENX", "COPY", "COPY",
            "MOVE", "SELECT", "SWAPDB", "DBSIZE", "OBJECT", "OBJECT", "KEYS", "FLUSHDB",
            "FLUSHALL",
        ]);
        let mut words = vec![name];
        match words[0].as_slice() {
            b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" => words.extend(self.keys(1)),
            b"RENAME" | b"RENAMENX" => words.extend([self.key(), self.key()]),
            b"COPY" => {
                words.extend([self.key(), self.key()]);
                while self.random.below(2) == 0 {
                    words.push(self.of(&["REPLACE", "DB", "no"]));
                    if words.last().is_some_and(|word| word == b"DB") {
                        words.push(self.database());
                    }
                }
            }
            b"MOVE" => words.extend([self.key(), self.database()]),
            b"SELECT" => words.push(self.database()),
            b"SWAPDB" => words.extend([self.database(), self.database()]),
            b"OBJECT" => words.extend([self.of(&["ENCODING", "encoding", "no"]), self.key()]),
            // One key at most matches, so that the order is the same.
            b"KEYS" => {
                words.push(self.of(&["a*long*", "[a]", "\\b", "c", "none*", "a?long k[a-f]y"]))
            }
            // Rarely, so that there are keys most of the time.
            b"FLUSHALL" | b"FLUSHDB" if self.random.below(8) > 0 => {
                words = vec![b"DBSIZE".to_vec()]
            }
            b"FLUSHALL" | b"FLUSHDB" => {
                words.extend(
                    Some(self.of(&["ASYNC", "sync", "no"])).filter(|_| self.random.below(2) > 0),
                );
            }
            b"DBSIZE" => {}
            _ => words.push(self.key()),
        }
        words
    }

    fn times(&mut self) -> Vec<Vec<u8>> {
        let name = self.of(&[
            "EXPIRE",
            "EXPIRE",
            "PEXPIRE",
            "EXPIREAT",
            "PEXPIREAT",
            "TTL",
            "PTTL",
            "EXPIRETIME",
            "PEXPIRETIME",
            "PERSIST",
        ]);
        let mut words = vec![name, self.key()];
        let time = match words[0].as_slice() {
            b"EXPIRE" if self.random.below(2) == 0 => self.unique("000"),
            b"PEXPIRE" if self.random.below(2) == 0 => self.unique("000000"),
            b"EXPIRE" => self.of(&["0", "-1", "x", "9223372036854775807"]),
            b"PEXPIRE" => self.of(&["-1", "x", "9223372036854775807"]),
            b"EXPIREAT" => {
                self.of(&["99999999999", "1", "x", "9223372036854775807", "88888888888"])
            }
            b"PEXPIREAT" => self.of(&["99999999999999", "-1", "x", "9223372036854770000"]),
            _ => return words,
        };
        words.push(time);
        while self.random.below(2) == 0 {
            words.push(self.of(&["NX", "XX", "GT", "LT", "lt", "xx", "no"]));
        }
        words
    }

    fn others(&mut self) -> Vec<Vec<u8>> {
        let line = self.random.pick(&[
            "PING",
            "PING x",
            "ECHO x",
            "MULTI",
            "MULTI",
            "EXEC",
            "EXEC",
            "EXEC",
            "DISCARD",
            "WATCH a b",
            "WATCH c",
            "UNWATCH",
            "RESET",
            "CLIENT GETNAME",
            "CLIENT SETNAME me",
            "CLIENT SETNAME a\u{e9}",
            "CLIENT NO",
            "CLIENT",
            "CONFIG",
            "CONFIG NO x",
            "OBJECT",
            "CLIENT KILL",
            "CLIENT KILL ID 0",
            "CLIENT KILL TYPE no",
            "CLIENT KILL USER no",
            "CLIENT KILL 1.2.3.4:5",
            "CLIENT KILL ID 999999999",
            "CLIENT LIST TYPE no",
            "CLIENT LIST ID x",
            "CLIENT REPLY no",
            "HELLO 4",
            "HELLO x",
            "HELLO 2 NO",
            "AUTH x",
            "AUTH default x",
            "AUTH no x",
            "CONFIG GET save",
            "CONFIG GET appendonly",
            "CONFIG SET maxmemory x",
            "CONFIG SET no x",
            "CONFIG SET a",
            "COMMAND GETKEYS MSET a b c d",
            "COMMAND GETKEYS GET",
            "COMMAND GETKEYS no",
            "COMMAND GETKEYS PING",
            "COMMAND no",
            "SCAN x",
            "SCAN 0 COUNT 0",
            "SCAN 0 COUNT x",
            "SCAN 0 no",
            "SCAN 0 MATCH",
            "RANDOMKEY x",
            "nonsense",
            "nonsense a b",
            "GET|SET x",
            "FUNCTION LIST",
            "FUNCTION NO",
            "TIME x",
            "SCAN 0 MATCH none TYPE string COUNT 1000",
            "COMMAND INFO nonsense",
        ]);
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }
}
