//! An LC task that sleeps until it is called and notes when it got to run; `quell bench reaction`
//! wakes it behind batch work. The only argument is the file of the page that both map.

use std::process::ExitCode;

use quell_bench::reaction::Page;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: quell-sleeper FILE (made by `quell bench reaction`)");
        return ExitCode::from(2);
    };
    match Page::open(path.as_ref()) {
        Ok(page) => {
            page.sleep();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
