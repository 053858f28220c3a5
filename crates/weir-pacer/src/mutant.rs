//! Deliberate bugs that the simulation, or a test, must catch. They exist only in builds with `--cfg weir_mutants`. The
//! function stands in this crate, because none is below it; others know it as `weir_device::mutant`.

/// Whether the deliberate bug `name` is switched on (`WEIR_MUTANT=name`). Constant `false` in the product build.
#[cfg(not(weir_mutants))]
#[inline(always)]
#[must_use]
pub const fn mutant(_name: &str) -> bool {
    false
}

/// Whether the deliberate bug `name` is switched on (`WEIR_MUTANT=name`).
#[cfg(weir_mutants)]
#[must_use]
pub fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("WEIR_MUTANT").ok()).as_deref() == Some(name)
}
