//! Fake work: each request carries the service time that it wants.
//!
//! Frames are 24 bytes, little-endian, both ways:
//!
//! ```text
//! request   magic u32 | op u8     | zero [u8; 3] | id u64 | argument u64
//! reply     magic u32 | status u8 | zero [u8; 3] | id u64 | spent_ns u64
//! ```
//!
//! `work` burns its argument in nanoseconds of calibrated CPU work; `runaway` is answered at once and
//! then makes the worker spin for its argument in nanoseconds, 0 for ever.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Length of a frame in bytes.
pub const FRAME_BYTES: usize = 24;

const REQUEST_MAGIC: u32 = u32::from_le_bytes(*b"QREQ");
const REPLY_MAGIC: u32 = u32::from_le_bytes(*b"QREP");

/// Set in the ids of rare requests, so that a token says what it stands for.
const LONG: u64 = 1 << 63;

/// The longest service time that a request may ask for: 10 s.
pub const WORK_NS_MAX: u64 = 10_000_000_000;

/// How long the server works on a request. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "service", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ServiceTime {
    /// Always the same.
    Fixed {
        /// The time.
        work_ns: u64,
    },
    /// Exponentially distributed.
    Exponential {
        /// Its mean.
        mean_ns: u64,
    },
    /// One of two times, as Shinjuku's and ZygOS' evaluations use.
    Bimodal {
        /// The usual time.
        short_ns: u64,
        /// The rare time.
        long_ns: u64,
        /// Requests in a thousand that take the rare time.
        long_permille: u16,
    },
}

impl ServiceTime {
    /// A service time, and whether it is the rare one.
    fn draw(self, rng: &mut WorkloadRng) -> (u64, bool) {
        let mut is_long = false;
        let work_ns = match self {
            ServiceTime::Fixed { work_ns } => work_ns,
            ServiceTime::Exponential { mean_ns } => {
                let u: f64 = rng.random();
                (-(1.0 - u).ln() * mean_ns as f64) as u64
            }
            ServiceTime::Bimodal { short_ns, long_ns, long_permille } => {
                is_long = rng.random_range(0..1_000u16) < long_permille;
                if is_long { long_ns } else { short_ns }
            }
        };
        (work_ns.min(WORK_NS_MAX), is_long)
    }
}

/// The workload: what each request costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticSpec {
    /// How service times are drawn.
    #[serde(flatten)]
    pub service: ServiceTime,
}

/// What a request asks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Burn this much CPU work, then answer.
    Work {
        /// Service time in nanoseconds.
        work_ns: u64,
    },
    /// Answer, then spin.
    Runaway {
        /// How long in nanoseconds; `None` until the server stops.
        spin_ns: Option<u64>,
    },
}

/// A request frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in the reply.
    pub id: u64,
    /// What to do.
    pub op: Op,
}

impl Request {
    /// The frame of this request.
    pub fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let (op, argument) = match self.op {
            Op::Work { work_ns } => (0, work_ns),
            Op::Runaway { spin_ns } => (1, spin_ns.unwrap_or(0)),
        };
        frame(REQUEST_MAGIC, op, self.id, argument)
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Malformed`] on a wrong magic or op, or on work beyond [`WORK_NS_MAX`].
    pub fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Result<Request, Malformed> {
        let (magic, op, id, argument) = fields(bytes);
        let op = match (magic, op) {
            (REQUEST_MAGIC, 0) if argument <= WORK_NS_MAX => Op::Work { work_ns: argument },
            (REQUEST_MAGIC, 0) => return Err(Malformed("work beyond the limit")),
            (REQUEST_MAGIC, 1) => Op::Runaway { spin_ns: (argument != 0).then_some(argument) },
            _ => return Err(Malformed("not a request frame")),
        };
        Ok(Request { id, op })
    }
}

/// A reply frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// Whether the server did what was asked.
    pub done: bool,
    /// Wall time that the work took in nanoseconds, preemptions included.
    pub spent_ns: u64,
}

impl Reply {
    /// The frame of this reply.
    pub fn to_bytes(self) -> [u8; FRAME_BYTES] {
        frame(REPLY_MAGIC, u8::from(!self.done), self.id, self.spent_ns)
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Malformed`] on a wrong magic or status.
    pub fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Result<Reply, Malformed> {
        let (magic, status, id, spent_ns) = fields(bytes);
        match (magic, status) {
            (REPLY_MAGIC, 0 | 1) => Ok(Reply { id, done: status == 0, spent_ns }),
            _ => Err(Malformed("not a reply frame")),
        }
    }
}

fn frame(magic: u32, kind: u8, id: u64, argument: u64) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    bytes[0..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4] = kind;
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..24].copy_from_slice(&argument.to_le_bytes());
    bytes
}

fn fields(bytes: &[u8; FRAME_BYTES]) -> (u32, u8, u64, u64) {
    let [m0, m1, m2, m3, kind, _, _, _, rest @ ..] = *bytes;
    let [i0, i1, i2, i3, i4, i5, i6, i7, a0, a1, a2, a3, a4, a5, a6, a7] = rest;
    let id = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
    let argument = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
    (u32::from_le_bytes([m0, m1, m2, m3]), kind, id, argument)
}

/// Encoder and parser of the generator's side.
pub struct Synthetic {
    spec: SyntheticSpec,
    next_id: u64,
}

impl Synthetic {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &SyntheticSpec) -> Result<Synthetic, String> {
        let longest = match spec.service {
            ServiceTime::Fixed { work_ns } => work_ns,
            ServiceTime::Exponential { mean_ns } => mean_ns,
            ServiceTime::Bimodal { long_permille: 1_001.., .. } => {
                return Err("synthetic: long_permille is above 1000".into());
            }
            ServiceTime::Bimodal { short_ns, long_ns, .. } => short_ns.max(long_ns),
        };
        if longest > WORK_NS_MAX {
            return Err(format!("synthetic: {longest} ns of work is above {WORK_NS_MAX}"));
        }
        Ok(Synthetic { spec: *spec, next_id: 0 })
    }
}

impl Protocol for Synthetic {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        let (work_ns, is_long) = self.spec.service.draw(rng);
        let id = self.next_id | if is_long { LONG } else { 0 };
        self.next_id += 1;
        let op = Op::Work { work_ns };
        out.extend_from_slice(&Request { id, op }.to_bytes());
        Token(id)
    }

    fn encode_preload(&mut self, _index: u64, _out: &mut Vec<u8>) -> Option<Token> {
        None
    }

    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed> {
        let Some(bytes) = input.first_chunk::<FRAME_BYTES>() else { return Ok(Parsed::Incomplete) };
        let reply = Reply::from_bytes(bytes)?;
        if reply.id != token.0 {
            return Err(Malformed("reply to another request"));
        }
        let status = if reply.done { Status::Ok } else { Status::Error };
        Ok(Parsed::Reply { len: FRAME_BYTES, status })
    }

    fn is_long(&self, token: Token) -> bool {
        token.0 & LONG != 0
    }

    fn reply_bytes_max(&self) -> usize {
        FRAME_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    fn mean_ns(service: ServiceTime) -> f64 {
        let mut rng = WorkloadRng::seed_from_u64(11);
        (0..200_000).map(|_| service.draw(&mut rng).0 as f64).sum::<f64>() / 200_000.0
    }

    #[test]
    fn service_times_have_the_mean_that_was_asked_for() {
        assert_eq!(mean_ns(ServiceTime::Fixed { work_ns: 5_000 }), 5_000.0);
        let exponential = mean_ns(ServiceTime::Exponential { mean_ns: 10_000 });
        assert!((exponential / 10_000.0 - 1.0).abs() < 0.02, "{exponential}");
        let bimodal =
            mean_ns(ServiceTime::Bimodal { short_ns: 5_000, long_ns: 55_000, long_permille: 100 });
        assert!((bimodal / 10_000.0 - 1.0).abs() < 0.02, "{bimodal}");
    }

    #[test]
    fn a_token_says_whether_its_request_is_a_long_one() {
        let service = ServiceTime::Bimodal { short_ns: 1, long_ns: 1_000, long_permille: 200 };
        let mut protocol = Synthetic::new(&SyntheticSpec { service }).unwrap();
        let mut rng = WorkloadRng::seed_from_u64(3);
        let mut long = 0;
        for _ in 0..1_000 {
            let mut frame = Vec::new();
            let token = protocol.encode(&mut rng, &mut frame);
            let request = Request::from_bytes(frame.first_chunk().unwrap()).unwrap();
            assert_eq!(protocol.is_long(token), request.op == Op::Work { work_ns: 1_000 });
            long += u32::from(protocol.is_long(token));
        }
        assert!((150..250).contains(&long), "{long}");
    }

    #[test]
    fn a_reply_to_another_request_is_refused() {
        let protocol =
            Synthetic::new(&SyntheticSpec { service: ServiceTime::Fixed { work_ns: 1 } }).unwrap();
        let bytes = Reply { id: 4, done: true, spent_ns: 1 }.to_bytes();
        assert!(protocol.parse(&bytes, Token(5)).is_err());
        let whole = Parsed::Reply { len: FRAME_BYTES, status: Status::Ok };
        assert_eq!(protocol.parse(&bytes, Token(4)), Ok(whole));
        assert_eq!(protocol.parse(&bytes[..23], Token(4)), Ok(Parsed::Incomplete));
    }

    #[test]
    fn a_workload_that_makes_no_sense_is_refused() {
        let refused = |service| Synthetic::new(&SyntheticSpec { service }).is_err();
        assert!(refused(ServiceTime::Fixed { work_ns: WORK_NS_MAX + 1 }));
        assert!(refused(ServiceTime::Bimodal { short_ns: 1, long_ns: 2, long_permille: 1_001 }));
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(id: u64, work_ns in 0..=WORK_NS_MAX, spin_ns: u64, run: bool) {
            let spin_ns = (spin_ns != 0).then_some(spin_ns);
            let op = if run { Op::Runaway { spin_ns } } else { Op::Work { work_ns } };
            let request = Request { id, op };
            prop_assert_eq!(Request::from_bytes(&request.to_bytes()), Ok(request));
        }

        #[test]
        fn garbage_never_panics(bytes: [u8; FRAME_BYTES]) {
            let _ = Request::from_bytes(&bytes);
            let _ = Reply::from_bytes(&bytes);
        }
    }
}
