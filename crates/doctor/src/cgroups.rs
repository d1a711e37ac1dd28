//! Control groups.

use super::finding::{Check, Finding, Topic};
use super::host::{Host, Mount};

/// Where a controller is: in the unified hierarchy or a mount of its own.
enum Controller {
    V2(String),
    V1(String),
}

impl Controller {
    fn path(&self) -> &str {
        match self {
            Controller::V2(path) | Controller::V1(path) => path,
        }
    }
}

fn unified(host: &Host) -> Option<String> {
    host.mount_of("cgroup2")
}

fn v1_mounts(host: &Host) -> Vec<Mount> {
    host.mounts().into_iter().filter(|mount| mount.kind == "cgroup").collect()
}

fn controller(host: &Host, name: &str) -> Option<Controller> {
    if let Some(root) = unified(host) {
        let listed = host.text(&format!("{root}/cgroup.controllers"));
        if listed.split_whitespace().any(|listed| listed == name) {
            return Some(Controller::V2(root));
        }
    }
    let holds = |mount: &Mount| mount.options.split(',').any(|option| option == name);
    v1_mounts(host).into_iter().find(holds).map(|mount| Controller::V1(mount.target))
}

/// Which versions are mounted.
pub(super) fn layout(host: &Host) -> Finding {
    let check = Check { id: "cgroups", topic: Topic::Cgroups, title: "Layout" };
    let (v2, v1) = (unified(host), v1_mounts(host));
    let v1_names: Vec<_> = v1.iter().filter_map(|mount| mount.target.rsplit('/').next()).collect();
    let finding = match (&v2, v1.is_empty()) {
        (Some(root), true) => {
            let controllers = host.text(&format!("{root}/cgroup.controllers"));
            check.pass(format!("v2 on {root} with {controllers}"), "Quell uses it as it is")
        }
        (Some(root), false) => {
            let controllers = host.text(&format!("{root}/cgroup.controllers"));
            let controllers = if controllers.is_empty() { "none" } else { &controllers };
            check.pass(
                format!("hybrid: v1 with {}; v2 on {root} with {controllers}", v1_names.join(" ")),
                "Quell uses each controller where it is",
            )
        }
        (None, false) => check.pass(
            format!("v1 with {}", v1_names.join(" ")),
            "Quell uses each controller where it is",
        ),
        (None, true) => check.absent(
            "none is mounted",
            "a task without a core cannot be stopped, and the cpuset back end cannot run",
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        ),
    };
    finding.seen("/proc/self/mounts", format_args!("cgroup2: {v2:?}, cgroup: {v1_names:?}"))
}

/// The freezer, which stops a task that has no core.
pub(super) fn freezer(host: &Host) -> Finding {
    let check = Check { id: "freezer", topic: Topic::Cgroups, title: "Freezer" };
    // In v2 it belongs to the core of every hierarchy, not to a controller.
    let v1 = controller(host, "freezer");
    let place = v1.or_else(|| unified(host).map(Controller::V2));
    needed(
        &check,
        host,
        place,
        "batch work that has no core left is stopped and thawed again",
        "batch work that has no core left is squeezed by priority only, and still gets what the fair \
         server gives it",
    )
}

/// cpusets, the other back end.
pub(super) fn cpuset(host: &Host) -> Finding {
    let check = Check { id: "cpuset", topic: Topic::Cgroups, title: "cpuset" };
    let place = controller(host, "cpuset");
    needed(
        &check,
        host,
        place,
        "the cpuset back end can run where real-time scheduling is refused",
        "the cpuset back end cannot run; elevation does not need it",
    )
}

fn needed(
    check: &Check,
    host: &Host,
    place: Option<Controller>,
    with: &str,
    without: &str,
) -> Finding {
    let Some(place) = place else {
        return check
            .absent(
                "not there",
                without,
                format!("boot a kernel with it, and mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup ({})", check.title),
            )
            .seen("/proc/self/mounts", "no such controller");
    };
    let version = match &place {
        Controller::V2(_) => "v2",
        Controller::V1(_) => "v1",
    };
    let root = place.path();
    let access = rustix::fs::Access::WRITE_OK;
    match rustix::fs::access(host.path(root), access) {
        Ok(()) => check.pass(format!("{version} on {root}"), with).seen(root, "writable"),
        Err(error) => check
            .degraded(
                format!("{version} on {root}, which this process may not change"),
                without,
                "run as root, where the cgroup file system is mounted for writing",
            )
            .seen(root, std::io::Error::from(error)),
    }
}
