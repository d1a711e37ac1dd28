//! Open-loop load generator, LC test server and antagonists
