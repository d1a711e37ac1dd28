//! The thread that asks the daemon, so that a daemon that is slow or gone holds up no key.

use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, Sender};
use quell_control::client::{Client, ClientError};
use quell_control::protocol::{Method, Reply, Status};

use crate::decisions::Followed;
use crate::state::{Event, Why};
use crate::table::Subject;

/// What to ask.
pub(crate) enum Ask {
    /// A status.
    Status,
    /// Why something is as it is.
    Why(Subject),
}

/// Asks until nobody wants answers. A broken connection is made anew with the next question.
pub(crate) fn run(socket: PathBuf, asks: &Receiver<Ask>, news: &Sender<Event>) {
    let mut client = None;
    // Without a thread for it the newest decisions come with each status.
    let mut followed = Followed::start(&socket).ok();
    for ask in asks {
        let event = match answer(&mut client, &socket, ask) {
            Ok(Event::Status(mut status)) => {
                if let Some(followed) = &mut followed {
                    followed.complete(&mut status);
                }
                Event::Status(status)
            }
            Ok(event) => event,
            Err(err) => {
                client = None;
                Event::Gone(err.to_string())
            }
        };
        if news.send(event).is_err() {
            return;
        }
    }
}

pub(crate) fn answer(
    client: &mut Option<Client>,
    socket: &Path,
    ask: Ask,
) -> Result<Event, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(socket)?),
    };
    match ask {
        Ask::Status => Ok(Event::Status(status(client)?)),
        Ask::Why(subject) => {
            let named = match &subject {
                Subject::Task(name) => name.clone(),
                Subject::Core(core) => core.to_string(),
            };
            let said = match client.call(Method::Explain { subject: named }) {
                Ok(Reply::Done(lines)) => Ok(lines),
                Ok(_) => Err(out_of_turn().to_string()),
                Err(ClientError::Refused(why)) => Err(why),
                Err(err) => return Err(err),
            };
            Ok(Event::Why(Why { subject, said }))
        }
    }
}

/// Asks for one status.
pub(crate) fn status(client: &mut Client) -> Result<Box<Status>, ClientError> {
    match client.call(Method::Status)? {
        Reply::Status(status) => Ok(status),
        _ => Err(out_of_turn()),
    }
}

fn out_of_turn() -> ClientError {
    ClientError::Refused("the daemon answered out of turn".to_owned())
}
