//! On whose behalf leave is asked, and how much presses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Class, Leave, Pacer, Work, mutant};

/// How much a kind of work presses: from 0, nothing does, to 1, clients wait for it. Clones share one value.
/// Whoever does the work sets it; what waits already goes by it from its next window on.
#[derive(Clone, Debug, Default)]
pub struct Pressure(Arc<AtomicU32>);

impl Pressure {
    /// That of what clients wait for, in thousandths.
    pub const FULL: u32 = 1000;

    /// One that grows with `value`, in thousandths: none up to `from`, full from `to` on.
    #[must_use]
    pub fn between(value: u64, from: u64, to: u64) -> u32 {
        if value <= from {
            return 0;
        }
        if value >= to {
            return Self::FULL;
        }
        let share = u128::from(value - from) * u128::from(Self::FULL) / u128::from(to - from);
        u32::try_from(share).unwrap_or(Self::FULL)
    }

    /// Sets the pressure, in thousandths.
    pub fn set(&self, thousandths: u32) {
        self.0.store(thousandths.min(Self::FULL), Ordering::Relaxed);
    }

    /// As it was set last, in thousandths.
    #[must_use]
    pub fn thousandths(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// As it was said last.
    #[must_use]
    pub fn get(&self) -> f64 {
        f64::from(self.thousandths()) / f64::from(Self::FULL)
    }
}

/// Who asks the pacer for leave: a class of work, and what presses it.
#[derive(Clone, Debug)]
pub struct Pace {
    pacer: Pacer,
    class: Class,
    pressure: Pressure,
    /// From then on it counts as pressed by 1.
    waits_until: Option<Instant>,
}

impl Pace {
    /// Of work of that class.
    #[must_use]
    pub fn new(pacer: &Pacer, class: Class, pressure: &Pressure) -> Self {
        Self { pacer: pacer.clone(), class, pressure: pressure.clone(), waits_until: None }
    }

    /// For one operation, which waits at most about so long for leave in all: what waits in many pieces would never end
    /// where much else asks.
    #[must_use]
    pub fn for_at_most(&self, patience: Duration) -> Self {
        Self { waits_until: Some(Instant::now() + patience), ..self.clone() }
    }

    fn pressure(&self) -> f64 {
        match self.waits_until {
            Some(end) if Instant::now() >= end && !mutant("patience_never_ends") => 1.0,
            _ => self.pressure.get(),
        }
    }

    fn work(&self, bytes: u64, operations: u64) -> Work {
        Work { class: self.class, bytes, operations }
    }

    /// Waits for leave, see [`Pacer::leave`].
    pub async fn leave(&self, bytes: u64, operations: u64) -> Leave {
        self.pacer.leave(self.work(bytes, operations), || self.pressure()).await
    }

    /// As [`Pace::leave`], on a thread that may block.
    pub fn leave_blocking(&self, bytes: u64, operations: u64) -> Leave {
        self.pacer.leave_blocking(self.work(bytes, operations), || self.pressure())
    }

    /// Whether somebody waits for the work.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.pressure() >= 1.0
    }

    /// Whether clients could feel the work: then it goes in small pieces.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.pressure() < 1.0 && self.pacer.seen().bytes_per_second.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestKind;

    #[tokio::test(start_paused = true)]
    async fn an_operation_waits_so_long_and_no_longer() {
        let pacer = Pacer::default();
        let pace = Pace::new(&pacer, Class::Upload, &Pressure::default());
        let _clients = tokio::spawn({
            let pacer = pacer.clone();
            async move {
                loop {
                    pacer.request(RequestKind::Write, 4096).ended();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        pace.leave(1 << 30, 0).await.used();
        assert!(began.elapsed() < Duration::from_secs(1), "the first piece makes the debt");
        assert!(pace.is_bounded());
        let one = pace.for_at_most(Duration::from_secs(5));
        for _ in 0..100 {
            one.leave(1 << 20, 0).await.used();
        }
        let waited = began.elapsed();
        assert!((5..6).contains(&waited.as_secs()), "{waited:?}");
        assert!(!one.is_bounded(), "from then on it goes in large pieces");
    }

    #[test]
    fn pressure_grows_between_two_bounds() {
        assert_eq!(
            [0, 50, 51, 74, 75, 90].map(|v| Pressure::between(v, 50, 75)),
            [0, 0, 40, 960, 1000, 1000]
        );
        assert_eq!([0, 1].map(|value| Pressure::between(value, 0, 0)), [0, 1000]);
    }

    #[test]
    fn pressure_is_the_same_for_all_that_share_it() {
        let pressure = Pressure::default();
        let same = pressure.clone();
        pressure.set(2000);
        assert!((same.get() - 1.0).abs() < 1e-9);
        pressure.set(250);
        assert!((same.get() - 0.25).abs() < 1e-9);
    }
}
