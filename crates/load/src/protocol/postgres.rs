//! PostgreSQL's frontend/backend protocol, version 3: the transactions of pgbench's built-in scripts `tpcb-like` and
//! `select-only`, as pgbench sends them by default: simple queries, one statement a message, each after the answer of the
//! last. A transaction is one request of several round trips.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::{backend, frontend};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Largest scale: the parameters of a transaction fit into a [`Token`].
const SCALE_MAX: u32 = 500;
/// Longest name of a user or database (`NAMEDATALEN` without its zero).
const NAME_BYTES_MAX: usize = 63;
/// Longest answer to one statement: a row of one number and what belongs to it take some hundred bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// How long the server may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Longest greeting: parameters and notices.
const GREETING_BYTES_MAX: usize = 1 << 20;

/// Tags of messages from the server.
const ERROR: u8 = b'E';
const READY: u8 = b'Z';
const AUTHENTICATION: u8 = b'R';

/// What is asked of a database that `pgbench -i` made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresSpec {
    /// The user of the connection; the server has to trust this user.
    pub user: String,
    /// Which database.
    pub database: String,
    /// Which transaction.
    pub transaction: Transaction,
    /// The scale that `pgbench -i -s` was given.
    pub scale: u32,
}

/// One of pgbench's built-in scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transaction {
    /// `tpcb-like`: three updates, a query and an insert in a transaction of seven round trips.
    TpcB,
    /// `select-only`: one query.
    SelectOnly,
}

impl Default for PostgresSpec {
    fn default() -> PostgresSpec {
        let name = || "postgres".to_owned();
        PostgresSpec { user: name(), database: name(), transaction: Transaction::TpcB, scale: 1 }
    }
}

/// Encoder and parser.
pub struct Postgres {
    spec: PostgresSpec,
}

/// What a transaction is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    account: u32,
    teller: u32,
    branch: u32,
    delta: i32,
}

impl Parameters {
    fn drawn(scale: u32, rng: &mut WorkloadRng) -> Parameters {
        Parameters {
            account: rng.random_range(1..=100_000 * scale),
            teller: rng.random_range(1..=10 * scale),
            branch: rng.random_range(1..=scale),
            delta: rng.random_range(-5_000..=5_000),
        }
    }

    fn token(self) -> Token {
        let delta = (self.delta + 5_000) as u64;
        let (account, teller) = (u64::from(self.account), u64::from(self.teller));
        Token(account | teller << 26 | u64::from(self.branch) << 39 | delta << 48)
    }

    fn of(token: Token) -> Parameters {
        let bits = |at: u32, count: u32| (token.0 >> at & ((1 << count) - 1)) as u32;
        Parameters {
            account: bits(0, 26),
            teller: bits(26, 13),
            branch: bits(39, 9),
            delta: bits(48, 14).cast_signed() - 5_000,
        }
    }
}

impl Postgres {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which value makes no sense.
    pub fn new(spec: &PostgresSpec) -> Result<Postgres, String> {
        for (what, name) in [("user", &spec.user), ("database", &spec.database)] {
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.contains('\0') {
                return Err(format!("{what} `{}` is no name", name.escape_debug()));
            }
        }
        if !(1..=SCALE_MAX).contains(&spec.scale) {
            return Err(format!("scale {} is not in 1..={SCALE_MAX}", spec.scale));
        }
        Ok(Postgres { spec: spec.clone() })
    }

    /// The statement of a step, `None` after the last.
    fn statement(&self, token: Token, step: u32) -> Option<String> {
        let Parameters { account, teller, branch, delta } = Parameters::of(token);
        let select = format!("SELECT abalance FROM pgbench_accounts WHERE aid = {account};");
        Some(match (self.spec.transaction, step) {
            (Transaction::SelectOnly, 0) | (Transaction::TpcB, 2) => select,
            (Transaction::TpcB, 0) => "BEGIN;".to_owned(),
            (Transaction::TpcB, 1) => format!(
                "UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {account};"
            ),
            (Transaction::TpcB, 3) => format!(
                "UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {teller};"
            ),
            (Transaction::TpcB, 4) => format!(
                "UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = {branch};"
            ),
            (Transaction::TpcB, 5) => format!(
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
                 VALUES ({teller}, {branch}, {account}, {delta}, CURRENT_TIMESTAMP);"
            ),
            (Transaction::TpcB, 6) => "END;".to_owned(),
            _ => return None,
        })
    }
}

/// Appends a query. Statements hold no zero byte, so that the library takes each.
fn query(statement: &str, out: &mut Vec<u8>) {
    let mut message = BytesMut::with_capacity(statement.len() + 8);
    if frontend::query(statement, &mut message).is_ok() {
        out.extend_from_slice(&message);
    }
}

impl Protocol for Postgres {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        let token = Parameters::drawn(self.spec.scale, rng).token();
        if let Some(statement) = self.statement(token, 0) {
            query(&statement, out);
        }
        token
    }

    fn encode_preload(&mut self, _index: u64, _out: &mut Vec<u8>) -> Option<Token> {
        None
    }

    fn encode_next(&self, token: Token, step: u32, failed: bool, out: &mut Vec<u8>) -> bool {
        let next = match failed {
            true => (step > 0 || self.spec.transaction == Transaction::TpcB)
                .then(|| "ROLLBACK;".to_owned()),
            false => self.statement(token, step + 1),
        };
        next.is_some_and(|statement| {
            query(&statement, out);
            true
        })
    }

    fn pipelines(&self) -> bool {
        false
    }

    fn parse(&self, input: &[u8], _token: Token) -> Result<Parsed, Malformed> {
        let (mut at, mut status) = (0, Status::Ok);
        loop {
            let Some((tag, len)) = header(&input[at..])? else { return Ok(Parsed::Incomplete) };
            if at + len > input.len() {
                return Ok(Parsed::Incomplete);
            }
            at += len;
            match tag {
                ERROR => status = Status::Error,
                READY => return Ok(Parsed::Reply { len: at, status }),
                _ => {}
            }
        }
    }

    fn reply_bytes_max(&self) -> usize {
        REPLY_BYTES_MAX
    }

    fn greet(&self, mut stream: &TcpStream) -> Result<(), String> {
        let mut message = BytesMut::new();
        let parameters = [("user", &*self.spec.user), ("database", &*self.spec.database)];
        frontend::startup_message(parameters, &mut message).map_err(|err| err.to_string())?;
        let io = |err: std::io::Error| format!("greeting: {err}");
        stream.set_read_timeout(Some(GREETING_MAX)).map_err(io)?;
        stream.write_all(&message).map_err(io)?;
        let (mut input, mut at) = (Vec::new(), 0);
        let mut chunk = [0; 4_096];
        loop {
            while let Some(message) = whole(&input[at..]).map_err(|err| err.to_string())? {
                at += message.len();
                if is_ready(message)? {
                    return Ok(());
                }
            }
            if input.len() > GREETING_BYTES_MAX {
                return Err("a greeting without end".to_owned());
            }
            match stream.read(&mut chunk).map_err(io)? {
                0 => return Err("the server closed the connection".to_owned()),
                count => input.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

/// Tag and length of the message at the front, `None` while its head is not whole.
fn header(input: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    let header =
        backend::Header::parse(input).map_err(|_| Malformed("not the head of a message"))?;
    let Some(header) = header else { return Ok(None) };
    let len = usize::try_from(header.len()).map_err(|_| Malformed("a message of no length"))? + 1;
    if len > GREETING_BYTES_MAX {
        return Err(Malformed("a message longer than any of the protocol"));
    }
    Ok(Some((header.tag(), len)))
}

/// The message at the front, if it is whole.
fn whole(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    Ok(header(input)?.and_then(|(_, len)| input.get(..len)))
}

/// Whether the server is ready for a query.
///
/// # Errors
/// When it refuses, or asks for a password.
fn is_ready(message: &[u8]) -> Result<bool, String> {
    match message[0] {
        READY => Ok(true),
        ERROR => Err(said(message)),
        // What follows the length is the method of authentication; 0: none.
        AUTHENTICATION if message.get(5..9) != Some(&[0; 4]) => {
            Err("the server asks for a password; let it trust this user (pg_hba.conf)".to_owned())
        }
        _ => Ok(false),
    }
}

/// The human-readable field of an ErrorResponse.
fn said(message: &[u8]) -> String {
    let mut fields = message.get(5..).unwrap_or_default().split(|&byte| byte == 0);
    let text = fields.find_map(|field| field.strip_prefix(b"M"));
    format!("the server says: {}", String::from_utf8_lossy(text.unwrap_or(b"nothing")))
}

#[cfg(test)]
mod tests {
    use super::super::testing::replies_split_anywhere;
    use super::*;
    use proptest::prelude::*;

    const READY_IDLE: &[u8] = b"Z\0\0\0\x05I";

    fn protocol(transaction: Transaction) -> Postgres {
        Postgres::new(&PostgresSpec { transaction, scale: 10, ..PostgresSpec::default() }).unwrap()
    }

    #[test]
    fn replies_end_where_the_server_is_ready() {
        let begin = [b"C\0\0\0\x0aBEGIN\0".as_slice(), READY_IDLE].concat();
        let row = [b"T\0\0\0\x06\0\0D\0\0\0\x06\0\0C\0\0\0\x0dSELECT 1\0", READY_IDLE].concat();
        let refused = [b"E\0\0\0\x0bMwrong\0".as_slice(), b"\0", READY_IDLE].concat();
        let refused = {
            let mut all = refused;
            all[4] = 12;
            all
        };
        let token = Token(0);
        replies_split_anywhere(
            &protocol(Transaction::TpcB),
            &[
                (&begin, token, Status::Ok),
                (&row, token, Status::Ok),
                (&refused, token, Status::Error),
            ],
        );
    }

    #[test]
    fn a_transaction_has_seven_steps_and_is_rolled_back_once() {
        let tpcb = protocol(Transaction::TpcB);
        let mut out = Vec::new();
        let steps = (0..).take_while(|&step| tpcb.encode_next(Token(1), step, false, &mut out));
        assert_eq!(steps.count(), 6);
        assert!(tpcb.encode_next(Token(1), 3, true, &mut out));
        assert!(out.ends_with(b"ROLLBACK;\0"));
        assert!(!protocol(Transaction::SelectOnly).encode_next(Token(1), 0, false, &mut out));
        assert!(!protocol(Transaction::SelectOnly).encode_next(Token(1), 0, true, &mut out));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |spec: PostgresSpec| Postgres::new(&spec).is_err();
        assert!(refused(PostgresSpec { scale: 0, ..PostgresSpec::default() }));
        assert!(refused(PostgresSpec { scale: 501, ..PostgresSpec::default() }));
        assert!(refused(PostgresSpec { user: "a\0b".into(), ..PostgresSpec::default() }));
    }

    #[test]
    fn refusals_quote_the_server() {
        let refused = b"E\0\0\0\x1fSFATAL\0Mno such database\0\0";
        assert_eq!(is_ready(refused).unwrap_err(), "the server says: no such database");
        assert!(is_ready(b"R\0\0\0\x08\0\0\0\x0a").unwrap_err().contains("password"));
        assert_eq!(is_ready(b"R\0\0\0\x08\0\0\0\0"), Ok(false));
    }

    proptest! {
        #[test]
        fn parameters_survive_the_token(scale in 1u32..=SCALE_MAX, seed: u64) {
            use rand::SeedableRng as _;
            let drawn = Parameters::drawn(scale, &mut WorkloadRng::seed_from_u64(seed));
            prop_assert_eq!(Parameters::of(drawn.token()), drawn);
        }

        #[test]
        fn garbage_never_panics(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = protocol(Transaction::TpcB).parse(&input, Token(7));
            if let Ok(Some(message)) = whole(&input) {
                let _ = is_ready(message);
            }
        }
    }
}
