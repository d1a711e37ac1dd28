//! Weights of fair threads.

/// The weight of nice 0 (`NICE_0_LOAD`).
pub(crate) const NICE_0: u64 = 1_024;

/// The weight of a SCHED_IDLE thread (`WEIGHT_IDLEPRIO`).
pub(crate) const SCHED_IDLE: u64 = 3;

/// Weights of nice -20 to 19: about 1,024 / 1.25^nice (`sched_prio_to_weight`, kernel/sched/core.c).
const OF_NICE: [u32; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// The weight of a nice value; values beyond -20 and 19 count as these.
pub(crate) fn of_nice(nice: i8) -> u64 {
    let index = (i32::from(nice).clamp(-20, 19) + 20) as usize;
    u64::from(OF_NICE[index])
}

/// The weight of a cgroup by its `cpu.weight` (`sched_weight_from_cgroup`): 100 weighs as a thread of nice 0.
pub(crate) fn of_cgroup(cpu_weight: u32) -> u64 {
    (u64::from(cpu_weight) * NICE_0 + 50) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_of_weight_100_weighs_as_nice_0() {
        assert_eq!(of_cgroup(100), NICE_0);
        assert_eq!([1, 20, 10_000].map(of_cgroup), [10, 205, 102_400]);
    }

    #[test]
    fn each_step_of_nice_is_a_quarter() {
        assert_eq!(of_nice(0), NICE_0);
        for nice in -20..19 {
            let (own, next) = (of_nice(nice) as f64, of_nice(nice + 1) as f64);
            assert!((1.15..1.30).contains(&(own / next)), "{own} beside {next}");
        }
        assert_eq!(of_nice(i8::MAX), of_nice(19));
    }
}
