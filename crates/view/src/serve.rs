//! A small HTTP server for one picture: the page, and its blobs one by one.
//!
//! Requests are hostile: heads are bounded in size and time, few connections are served at once, only GET of known
//! paths is answered. A page on another site cannot read through a browser what is served here: the `Host` has to be
//! an address or `localhost`, and answers are for the same origin alone.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::page;
use crate::picture::Picture;

const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 32;
const PATIENCE: Duration = Duration::from_secs(10);
const GUARDS: &str = "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n\
     Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; \
     script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
     frame-ancestors 'none'\r\n";

/// A server that is bound and not yet running.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    picture: Picture,
    page: Vec<u8>,
    serving: AtomicUsize,
}

/// An answer: status, content type, further headers, body.
struct Answer(&'static str, &'static str, &'static str, Vec<u8>);

impl Answer {
    fn refused(status: &'static str) -> Answer {
        Answer(status, "text/plain; charset=utf-8", "", format!("{status}\n").into_bytes())
    }
}

impl Server {
    /// Binds the address.
    ///
    /// # Errors
    /// When it is not free or not this host's.
    pub fn bind(at: SocketAddr, picture: Picture) -> io::Result<Server> {
        let mut page = Vec::new();
        page::write_served(&picture, &mut page)?;
        let shared = Shared { picture, page, serving: AtomicUsize::new(0) };
        Ok(Server { listener: TcpListener::bind(at)?, shared: Arc::new(shared) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// When nothing can be accepted any more.
    pub fn run(self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                // The client was gone before it was served.
                Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(err) => return Err(err),
            };
            // Relaxed: the count guards nothing but itself.
            if self.shared.serving.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                self.shared.serving.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let shared = Arc::clone(&self.shared);
            std::thread::spawn(move || {
                // A client that is gone or too slow gets nothing more.
                let _ = serve(&stream, &shared);
                shared.serving.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

fn serve(mut stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let Answer(status, kind, more, body) = match read_head(stream)? {
        Ok(path) => answer(&path, shared)?,
        Err(refusal) => refusal,
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}{GUARDS}\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

fn answer(path: &str, shared: &Shared) -> io::Result<Answer> {
    if path == "/" {
        let page = shared.page.clone();
        return Ok(Answer(
            "200 OK",
            "text/html; charset=utf-8",
            "Cache-Control: no-store\r\n",
            page,
        ));
    }
    let number = path.strip_prefix("/blob/").and_then(|number| number.parse().ok());
    let blob = number.map_or(Ok(None), |number| shared.picture.blob(number))?;
    Ok(match blob {
        Some(blob) => {
            Answer("200 OK", "application/octet-stream", "Cache-Control: no-store\r\n", blob)
        }
        None => Answer::refused("404 Not Found"),
    })
}

/// The path of a GET, or what to answer to anything else.
fn read_head(mut from: &TcpStream) -> io::Result<Result<String, Answer>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut filled = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        match from.read(&mut head[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
        match parse(&head[..filled]) {
            Some(parsed) => return Ok(parsed),
            None if filled < head.len() => {}
            None => return Ok(Err(Answer::refused("431 Request Header Fields Too Large"))),
        }
    }
}

/// `None`: the head goes on.
fn parse(head: &[u8]) -> Option<Result<String, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Err(Answer::refused("400 Bad Request"))),
    }
    if request.method != Some("GET") {
        return Some(Err(Answer::refused("405 Method Not Allowed")));
    }
    let mut hosts = request.headers.iter().filter(|one| one.name.eq_ignore_ascii_case("host"));
    if !hosts.all(|host| std::str::from_utf8(host.value).is_ok_and(is_plain_host)) {
        return Some(Err(Answer::refused("421 Misdirected Request")));
    }
    Some(Ok(request.path.unwrap_or_default().to_owned()))
}

/// An address or `localhost`, with or without a port. Any other name may be one that a foreign site chose for our
/// address.
fn is_plain_host(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = name.map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::picture::{Builder, Range};
    use crate::synthetic::Synthetic;

    fn serving() -> (SocketAddr, usize) {
        let spec = Synthetic::paper(3_000);
        let mut builder = Builder::new(spec.meta().unwrap(), Range::ALL).unwrap();
        spec.events().for_each(|event| assert!(builder.push(&event).unwrap()));
        let picture = builder.finish().unwrap();
        let blobs = picture.blobs.len();
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), picture).unwrap();
        let address = server.address().unwrap();
        std::thread::spawn(move || server.run());
        (address, blobs)
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn page_and_blobs_are_served_and_nothing_else() {
        let (at, blobs) = serving();
        let get = |path: &str| ask(at, &format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n"));
        assert!(get("/").contains("<!doctype html>"));
        assert!(get("/blob/0").starts_with("HTTP/1.1 200"));
        assert!(get(&format!("/blob/{}", blobs - 1)).starts_with("HTTP/1.1 200"));
        for path in [&format!("/blob/{blobs}"), "/blob/-1", "/blob/", "/../etc/passwd", "/blob/0/0"]
        {
            assert!(get(path).starts_with("HTTP/1.1 404"), "{path}");
        }
    }

    #[test]
    fn hostile_requests_are_refused_and_the_next_one_is_served() {
        let (at, _) = serving();
        let status = |request: &str| ask(at, request)["HTTP/1.1 ".len()..][..3].to_owned();
        assert_eq!(status("POST / HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "421");
        assert_eq!(status("\u{1}\u{2}\r\n\r\n"), "400");
        assert_eq!(status(&format!("GET /{}", "a".repeat(HEAD_BYTES_MAX - 5))), "431");
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n"), "200");
    }

    proptest! {
        #[test]
        fn heads_of_any_kind_never_panic(head in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let _ = parse(&head);
        }

        #[test]
        fn names_are_no_plain_hosts(name in "[a-z]{1,8}\\.[a-z]{2,4}(:[0-9]{1,4})?") {
            prop_assert!(!is_plain_host(&name));
        }
    }
}
