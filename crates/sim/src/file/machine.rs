//! `[machine]`: a preset, its parts, or a recorded host.

use quell_model::{Bytes, BytesPerSec, CORES_MAX, NodeDistances, Topology};
use toml::Spanned;

use super::raw::{Place, RawMachine};
use super::{FileError, Files};
use crate::machine::{Machine, Memory, PRESETS, preset};

const SIBLINGS_DIFFER: &str = "cores with siblings have one capacity";

/// The cores of a scenario, and what they share.
pub(super) fn machine(
    typed: &Spanned<RawMachine>,
    place: &Place,
    files: &dyn Files,
) -> Result<(Topology, Machine), FileError> {
    let raw = typed.get_ref();
    if let Some(file) = &raw.like {
        return like(file, raw, place, files);
    }
    let broken = |err: quell_model::TopologyError| place.error(typed, err.to_string(), "");
    let (mut shape, mut machine) = ((1, 4, 1), Machine::default());
    let mut named = None;
    if let Some(name) = &raw.preset {
        let found = preset(name.get_ref()).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            let what = format!("there is no machine `{}`", name.get_ref());
            place.error(name, what, &format!("choose one of: {}", names.join(", ")))
        })?;
        (shape, machine) = (found.shape(), found.machine());
        named = Some(found);
    }
    let most = CORES_MAX as u64;
    let number = |key, typed, default: u16| place.number(key, typed, u64::from(default), 1..=most);
    let nodes = number("nodes", &raw.nodes, shape.0)?;
    let physical = number("physical", &raw.physical, shape.1)?;
    let smt = place.number("smt", &raw.smt, u64::from(shape.2), 1..=8)?;
    if nodes * physical * smt > most {
        let what = format!("{} cores", nodes * physical * smt);
        return Err(place.error(typed, what, &format!("at most {most} can be managed")));
    }
    machine.smt = smt > 1;
    if let Some(size) = &raw.cache_mb {
        machine.cache = Some(Bytes(place.within("cache_mb", size, 1..=100_000)? << 20));
    }
    if let Some(rate) = &raw.memory_mb_s {
        let rate = place.within("memory_mb_s", rate, 1..=100_000_000)?;
        machine.memory = Some(Memory { capacity: BytesPerSec(rate * 1_000_000) });
    }
    let as_preset = (nodes as u16, physical as u16, smt as u16) == shape;
    let topology = match named.filter(|_| as_preset) {
        Some(preset) => preset.topology(),
        None => Topology::regular(nodes as u16, physical as u16, smt as u16),
    };
    let topology = topology.map_err(broken)?;
    Ok((with_parts(topology, raw, place)?, machine))
}

/// The topology with the distances, clusters and capacities that the file has.
fn with_parts(
    mut topology: Topology,
    raw: &RawMachine,
    place: &Place,
) -> Result<Topology, FileError> {
    if let Some(rows) = &raw.distances {
        let refused = |what: String| place.error(rows, format!("`distances`: {what}"), "");
        let distances = NodeDistances::new(rows.get_ref());
        let distances = distances.map_err(|err| refused(err.to_string()))?;
        topology = topology.with_distances(distances).map_err(|err| refused(err.to_string()))?;
    }
    if let Some(size) = &raw.cluster {
        let physical = place.within("cluster", size, 1..=CORES_MAX as u64)? as u16;
        let clusters = topology.cores().iter().map(|core| core.physical / physical).collect();
        let refused = |err: quell_model::TopologyError| place.error(size, err.to_string(), "");
        topology = topology.with_clusters(clusters).map_err(refused)?;
    }
    if let Some(list) = &raw.capacities {
        let refused = |what: String| place.error(list, format!("`capacities`: {what}"), "");
        if topology.has_siblings() {
            // The kernel warns of both and has no rules for it (`sd_init`).
            return Err(refused(SIBLINGS_DIFFER.to_owned()));
        }
        let capacities = topology.with_capacities(list.get_ref().clone());
        topology = capacities.map_err(|err| refused(err.to_string()))?;
    }
    Ok(topology)
}

/// The cores of a recorded host. What they share besides is not in a recording.
fn like(
    file: &Spanned<String>,
    raw: &RawMachine,
    place: &Place,
    files: &dyn Files,
) -> Result<(Topology, Machine), FileError> {
    let parts = [&raw.nodes, &raw.physical, &raw.smt];
    let lists = [raw.distances.is_some(), raw.cluster.is_some(), raw.capacities.is_some()];
    if raw.preset.is_some() || lists.contains(&true) || parts.iter().any(|it| it.is_some()) {
        let what = "`like` has the shape of the machine".to_owned();
        return Err(place.error(
            file,
            what,
            "leave out preset, nodes, physical, smt, distances, cluster and capacities",
        ));
    }
    let refused = |what: String| {
        let remedy =
            "name a trace of `quell record`, or its topology as JSON, relative to this file";
        place.error(file, format!("`like = \"{}\"`: {what}", file.get_ref()), remedy)
    };
    let text = files.text(file.get_ref()).map_err(|err| refused(err.what))?;
    let topology: Topology = serde_json::from_str(&text).map_err(|err| refused(err.to_string()))?;
    let is_slow = |core: &quell_model::Core| topology.capacity(core.id) < Topology::FULL_CAPACITY;
    if topology.has_siblings() && topology.cores().iter().any(is_slow) {
        return Err(refused(SIBLINGS_DIFFER.to_owned()));
    }
    let machine = Machine { smt: topology.has_siblings(), ..Machine::default() };
    Ok((topology, machine))
}
