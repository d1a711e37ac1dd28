//! Programs of which no thread can go on.

use quell_sim::file::Simulation;

/// Two threads that take two locks, in these orders, under a kernel model.
#[expect(clippy::unwrap_used, reason = "part of the test")]
fn deadlocks(kernel: &str, waits: &str, orders: [[&str; 2]; 2]) -> Vec<String> {
    let mut text = format!(
        "version = 1\nlength_ms = 50\nwarm_up_ms = 0\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
         [host]\npolicy = \"linux-default\"\ncores = \"shared\"\ntick_us = 1000\nmemory_counters = false\n\
         [kernel]\nmodel = \"{kernel}\"\n[[task]]\nname = \"table\"\nmodel = \"program\"\n"
    );
    for (name, [first, second]) in ["plato", "kant"].into_iter().zip(orders) {
        text += &format!(
            "[[task.thread]]\nname = \"{name}\"\ncount = 1\nsteps = [\"lock {first}\", \"compute 1ms\", \
             \"lock {second}\", \"compute 1ms\", \"unlock {second}\", \"unlock {first}\"]\n"
        );
    }
    for fork in ["left", "right"] {
        text += &format!("[[task.sync]]\nname = \"{fork}\"\ntokens = 1\nwaits = \"{waits}\"\n");
    }
    let other = |_: &str| unreachable!("it names no file");
    let simulation = Simulation::parse(&text, "x.toml", "x", &other).unwrap();
    let report = quell_sim::run(&simulation.scenario, simulation.driver().unwrap().as_mut());
    assert_eq!(report.broken, []);
    assert_eq!(report.tasks[0].completed.is_none(), !report.deadlocks.is_empty());
    report.deadlocks.iter().map(ToString::to_string).collect()
}

#[test]
fn a_deadlock_names_the_threads_and_what_each_waits_for() {
    let crossed = [["left", "right"], ["right", "left"]];
    let said = "deadlock of `table`: all of its 2 threads wait: \
                plato 1 waits for `right`, which kant 2 has; kant 2 waits for `left`, which plato 1 has";
    for kernel in ["global", "linux-4.1", "linux-6.12"] {
        for waits in ["sleep", "spin", "spin-then-yield", "spin-then-sleep"] {
            assert_eq!(deadlocks(kernel, waits, crossed), [said], "{kernel}, {waits}");
            let ordered = [["left", "right"], ["left", "right"]];
            assert_eq!(deadlocks(kernel, waits, ordered), [""; 0], "{kernel}, {waits}");
        }
    }
}

#[test]
fn tokens_that_are_counted_have_no_holder() {
    let text = "version = 1\nlength_ms = 50\nwarm_up_ms = 0\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
                [host]\npolicy = \"linux-default\"\ncores = \"shared\"\ntick_us = 1000\nmemory_counters = false\n\
                [[task]]\nname = \"a\"\nmodel = \"program\"\n\
                [[task.thread]]\nname = \"maker\"\ncount = 1\nsteps = [\"compute 1ms\", \"post items\"]\n\
                [[task.thread]]\nname = \"user\"\ncount = 1\nsteps = [\"take items\", \"take items\"]\n\
                [[task.sync]]\nname = \"items\"\ntokens = 0\n";
    let other = |_: &str| unreachable!("it names no file");
    let simulation = Simulation::parse(text, "x.toml", "x", &other).unwrap();
    let report = quell_sim::run(&simulation.scenario, simulation.driver().unwrap().as_mut());
    let said = report.deadlocks[0].to_string();
    assert!(said.ends_with("user 2 waits for `items`, which has no tokens"), "{said}");
}

#[test]
fn an_ended_holder_is_not_the_thread_in_its_place() {
    // The first child takes the lock and ends with it; the second one has its place and waits for it.
    let text = "version = 1\nlength_ms = 50\nwarm_up_ms = 0\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
                [host]\npolicy = \"linux-default\"\ncores = \"shared\"\ntick_us = 1000\nmemory_counters = false\n\
                [[task]]\nname = \"a\"\nmodel = \"program\"\nthreads = 2\n\
                [[task.thread]]\nname = \"parent\"\ncount = 1\n\
                steps = [\"fork child\", \"sleep 5ms\", \"fork child\", \"compute 1ms\", \"lock it\"]\n\
                [[task.thread]]\nname = \"child\"\nsteps = [\"lock it\", \"compute 1ms\"]\n\
                [[task.sync]]\nname = \"it\"\ntokens = 1\n";
    let other = |_: &str| unreachable!("it names no file");
    let simulation = Simulation::parse(text, "x.toml", "x", &other).unwrap();
    let report = quell_sim::run(&simulation.scenario, simulation.driver().unwrap().as_mut());
    let said = report.deadlocks[0].to_string();
    let ends = "child 2 waits for `it`, which a thread that ended: 2 has";
    assert!(said.ends_with(ends) && !said.contains("which child"), "{said}");
}

#[test]
fn more_threads_than_there_may_be_are_refused() {
    let text = "version = 1\nlength_ms = 50\n[machine]\nphysical = 2\n[host]\npolicy = \"linux-default\"\n\
                cores = \"shared\"\n[[task]]\nname = \"a\"\nmodel = \"program\"\n\
                [[task.thread]]\nname = \"w\"\ncount = 4294967295\nsteps = [\"compute 1ms\"]\n\
                [[task.thread]]\nname = \"v\"\ncount = 4294967295\nsteps = [\"compute 1ms\"]\n";
    let other = |_: &str| unreachable!("it names no file");
    let refused = Simulation::parse(text, "x.toml", "x", &other).unwrap_err().to_string();
    assert!(refused.contains("threads are there from the start"), "{refused}");
}

#[test]
fn a_barrier_with_too_few_parties_is_a_deadlock() {
    let text = "version = 1\nlength_ms = 50\nwarm_up_ms = 0\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
                [host]\npolicy = \"linux-default\"\ncores = \"shared\"\ntick_us = 1000\nmemory_counters = false\n\
                [[task]]\nname = \"a\"\nmodel = \"program\"\n\
                [[task.thread]]\nname = \"w\"\ncount = 2\nsteps = [\"compute 1ms\", \"wait end\"]\n\
                [[task.sync]]\nname = \"end\"\nparties = 3\n";
    let other = |_: &str| unreachable!("it names no file");
    let simulation = Simulation::parse(text, "x.toml", "x", &other).unwrap();
    let report = quell_sim::run(&simulation.scenario, simulation.driver().unwrap().as_mut());
    let said = report.deadlocks[0].to_string();
    assert!(said.contains("w 1 waits for `end`, where 2 of 3 have come"), "{said}");
}
