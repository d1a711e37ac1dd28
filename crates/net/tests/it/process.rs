//! A server in a process of its own, that can be killed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// See the module. Killed when it is dropped.
pub struct ServerProcess {
    child: Child,
    pub port: SocketAddr,
}

impl ServerProcess {
    pub fn start() -> ServerProcess {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--ignored", "--exact", "process::helper::server", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let port = lines.find_map(|line| line.split_once("port ")?.1.parse().ok());
        ServerProcess { child, port: port.expect("it prints its port") }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is ours");
    }
}

mod helper {
    use quell_net::{Endpoint, EndpointConfig, OtherHosts};

    use crate::streams::address;

    /// Takes streams and reads nothing.
    #[test]
    #[ignore = "a program that tests start"]
    fn server() {
        // By any of its transports.
        let config = EndpointConfig { other_hosts: OtherHosts::Udp, ..EndpointConfig::default() };
        let server = Endpoint::new(config).expect("an endpoint");
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = server.listen(address()).expect("it is free");
        println!("port {}", server.take_channels(any).expect("a port"));
        let mut streams = Vec::new();
        while let Ok(stream) = listener.accept() {
            streams.push(stream);
        }
    }
}
