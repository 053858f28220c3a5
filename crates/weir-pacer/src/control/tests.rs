use super::*;
use crate::RequestKind;

const MIB: u64 = 1 << 20;
const STEP: Duration = Duration::from_micros(500);

/// A disk, clients and background work that asks all the time, in steps of half a millisecond.
struct Host {
    control: Control,
    now: Duration,
    /// What a request takes while nothing else happens.
    usual: Duration,
    /// Background bytes per second that make it take twice as long.
    capacity: f64,
    /// Background bytes of the last steps, fading.
    load: f64,
    pressure: f64,
    clients: bool,
    noise: u64,
}

#[derive(Debug, Default)]
struct Found {
    /// Bytes per second of background work.
    rate: f64,
    /// What clients saw, as a multiple of `usual`.
    latency: f64,
}

impl Host {
    fn new() -> Self {
        Self {
            control: Control::default(),
            now: Duration::from_secs(100),
            usual: Duration::from_micros(400),
            capacity: to_f64(600 * MIB),
            load: 0.0,
            pressure: 0.0,
            clients: true,
            noise: 1,
        }
    }

    /// Between 0.8 and 1.2.
    fn noise(&mut self) -> f64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        0.8 + 0.4 * to_f64(self.noise >> 33) / to_f64(1 << 31)
    }

    fn run(&mut self, time: Duration) -> Found {
        let (mut bytes, mut latency, mut requests) = (0, 0.0, 0);
        let end = self.now + time;
        while self.now < end {
            if self.clients {
                self.control.on_begin(self.now, 4096);
            }
            let mut moved = 0;
            while moved < 4 * MIB && self.goes() {
                moved += 64 << 10;
            }
            bytes += moved;
            self.load += (to_f64(moved) / STEP.as_secs_f64() - self.load) / 8.0;
            self.now += STEP;
            if self.clients {
                let times = (1.0 + self.load / self.capacity) * self.noise();
                let took = self.usual.mul_f64(times);
                self.control.on_end(
                    self.now,
                    &Sample { kind: RequestKind::Write, bytes: 4096, depth: 32, took },
                );
                latency += times;
                requests += 1;
            }
        }
        let latency = if requests == 0 { 1.0 } else { latency / f64::from(requests) };
        Found { rate: to_f64(bytes) / time.as_secs_f64(), latency }
    }

    fn goes(&mut self) -> bool {
        !matches!(self.ask(), Verdict::NotBefore(_))
    }

    fn ask(&mut self) -> Verdict {
        self.control.ask(self.now, Class::Upload, 64 << 10, self.pressure)
    }
}

#[test]
fn a_burst_hardly_feels_it() {
    let mut host = Host::new();
    let found = host.run(Duration::from_secs(1));
    assert!(found.latency < 1.06, "{found:?}");
    let later = host.run(Duration::from_secs(20));
    assert!(later.latency < 1.10, "{later:?}");
    assert!(later.rate > RATE_MIN, "what clients do not feel is used: {later:?}");
}

#[test]
fn pressure_takes_from_clients() {
    let mut host = Host::new();
    let without = host.run(Duration::from_secs(10));
    host.pressure = 0.5;
    host.run(Duration::from_secs(1));
    let with = host.run(Duration::from_secs(2));
    assert!(with.rate > 10.0 * without.rate, "{with:?} after {without:?}");
    host.pressure = 0.0;
    host.run(Duration::from_secs(1));
    let after = host.run(Duration::from_secs(5));
    assert!(after.latency < 1.15, "and gives it back: {after:?}");
}

#[test]
fn what_somebody_waits_for_lets_nothing_else_go_faster() {
    let rate_beside = |is_beside: bool| {
        let mut host = Host::new();
        host.run(Duration::from_secs(5));
        let mut bytes = 0.0;
        for _ in 0..100 {
            if is_beside {
                assert_eq!(host.control.ask(host.now, Class::Copy, 64 << 10, 1.0), Verdict::Free);
            }
            bytes += host.run(WINDOW).rate;
        }
        bytes
    };
    let (alone, beside) = (rate_beside(false), rate_beside(true));
    assert!((beside / alone - 1.0).abs() < 0.01, "{beside} beside {alone}");
}

#[test]
fn who_waits_is_not_made_to_wait() {
    let mut host = Host::new();
    host.run(Duration::from_secs(1));
    host.pressure = 1.0;
    for _ in 0..1000 {
        assert_eq!(host.ask(), Verdict::Free);
        host.now += STEP;
    }
}

#[test]
fn nothing_is_regulated_while_nobody_is_there() {
    let mut host = Host::new();
    for _ in 0..100 {
        assert_eq!(host.ask(), Verdict::Free, "no client yet");
    }
    host.run(Duration::from_secs(1));
    host.clients = false;
    host.run(REST + STEP);
    let found = host.run(Duration::from_secs(1));
    assert!(found.rate > to_f64(1000 * MIB), "{found:?}");
    assert_eq!(host.control.seen(host.now).bytes_per_second, None);
}

/// The disk is another machine's as well: it may be slower for an hour, and background work is not to blame.
#[test]
fn a_slower_disk_is_not_blamed_on_background_work() {
    let mut host = Host::new();
    host.run(Duration::from_secs(10));
    let before = host.control.rate;
    host.usual = host.usual.mul_f64(2.6);
    host.run(Duration::from_secs(15));
    let found = host.run(Duration::from_secs(30));
    assert!(found.rate > before / 4.0, "{found:?}, {before} before");
}

#[test]
fn a_client_that_comes_back_has_the_disk_alone_first() {
    let mut host = Host::new();
    let (kind, took) = (RequestKind::Write, Duration::ZERO);
    for window in 0..PAUSED_AT_FIRST {
        host.control.on_begin(host.now, 4096);
        host.control.on_end(host.now, &Sample { kind, bytes: 4096, depth: 1, took });
        assert!(!host.goes(), "{window}: {:?}", host.control.window);
        host.now += WINDOW;
    }
    assert_eq!(host.ask(), Verdict::Granted);
}

#[test]
fn large_pieces_are_paid_for_over_several_windows() {
    let mut host = Host::new();
    host.control.on_begin(host.now, 4096);
    let begun = host.now;
    while host.control.ask(host.now, Class::Upload, 8 * MIB, 0.0) != Verdict::Granted {
        host.now += WINDOW;
        assert!(host.now - begun < 1000 * WINDOW);
    }
    let mut waited = 0;
    while host.ask() != Verdict::Granted {
        host.now += WINDOW;
        host.control.on_begin(host.now, 4096);
        host.control.on_abandoned(4096);
        waited += 1;
        assert!(waited < 1000);
    }
    let seconds = WINDOW.as_secs_f64() * f64::from(waited);
    let expected = to_f64(8 * MIB) / RATE_MIN;
    assert!((0.7 * expected..1.5 * expected).contains(&seconds), "{seconds} s");
}

#[test]
fn requests_that_vanish_leave_nothing_behind() {
    let mut host = Host::new();
    for _ in 0..100 {
        host.control.on_begin(host.now, MIB);
        host.control.on_abandoned(MIB);
    }
    assert_eq!(host.control.pending, 0);
}

/// What two classes get in two seconds under these pressures, where the first asks with many askers at once.
fn shared_out(pressures: [f64; 2]) -> [u64; 2] {
    let mut host = Host::new();
    host.run(Duration::from_secs(1));
    let mut got = [0; 2];
    for _ in 0..4000 {
        host.control.on_begin(host.now, 4096);
        for _ in 0..8 {
            for (class, times) in [(Class::Upload, 4), (Class::Copy, 1)] {
                for _ in 0..times {
                    let index = class.index();
                    let verdict = host.control.ask(host.now, class, 64 << 10, pressures[index]);
                    got[index] += u64::from(verdict == Verdict::Granted);
                }
            }
        }
        host.now += STEP;
        let took = host.usual;
        let sample = Sample { kind: RequestKind::Write, bytes: 4096, depth: 32, took };
        host.control.on_end(host.now, &sample);
    }
    got
}

#[test]
fn no_class_starves_beside_another_that_asks_more_often() {
    let [upload, copy] = shared_out([0.0, 0.0]);
    assert!(copy > upload / 2 && upload > copy / 2, "{upload} and {copy}");
}

#[test]
fn what_is_pressed_gets_more() {
    let [upload, copy] = shared_out([0.9, 0.1]);
    assert!(upload > 3 * copy && copy > 0, "{upload} and {copy}");
}

#[test]
fn a_calm_asker_does_not_hide_a_pressed_one_of_its_class() {
    let mut control = Control::default();
    let now = Duration::from_secs(100);
    control.on_begin(now, 4096);
    control.ask(now, Class::Upload, 4096, 0.9);
    control.ask(now, Class::Upload, 4096, 0.0);
    assert_eq!(control.window.asked[Class::Upload.index()], Some(0.9));
}

/// A client that asks a few times a second is regulated too: what it felt counts once there is enough of it.
#[test]
fn few_requests_count_together() {
    let mut host = Host::new();
    host.run(Duration::from_secs(5));
    let before = host.control.rate.max(to_f64(64 * MIB));
    host.control.rate = before;
    for _ in 0..20 {
        host.control.on_begin(host.now, 4096);
        let took = host.usual * 8;
        host.now += 3 * WINDOW;
        let sample = Sample { kind: RequestKind::Write, bytes: 4096, depth: 32, took };
        host.control.on_end(host.now, &sample);
    }
    assert!(host.control.rate < before / 2.0, "{} after {before}", host.control.rate);
}

/// The first requests after a rest are slow by themselves.
#[test]
fn a_baseline_is_not_taken_while_everything_wakes_up() {
    let mut host = Host::new();
    let usual = host.usual;
    host.usual = usual * 3;
    host.run(WINDOW * u32::try_from(WARM_UP).expect("few"));
    host.usual = usual;
    let found = host.run(Duration::from_secs(1));
    assert!(found.rate < 2.0 * RATE_MIN, "{found:?}");
    assert!(host.control.seen > 0.9, "{}", host.control.seen);
}

/// Chance makes requests faster than the baseline as often as slower.
#[test]
fn chance_is_no_reason_to_grow_faster() {
    let mut host = Host::new();
    host.run(Duration::from_secs(1));
    let before = host.control.rate;
    host.usual /= 2;
    host.run(Duration::from_millis(500));
    assert!(host.control.rate < 1.5 * before, "{} after {before}", host.control.rate);
}

/// A disk whose requests take longer than a window.
#[test]
fn long_requests_have_a_baseline_too() {
    let mut control = Control::default();
    let mut now = Duration::from_secs(100);
    let took = Duration::from_millis(45);
    for _ in 0..100 {
        control.on_begin(now, 4096);
        now += took;
        control.on_end(now, &Sample { kind: RequestKind::Sync, bytes: 0, depth: 1, took });
        control.pending = 0;
    }
    let sample = Sample { kind: RequestKind::Sync, bytes: 0, depth: 1, took };
    assert!(control.baseline.of(&sample).is_some());
}

#[test]
fn a_client_that_waits_for_a_slow_disk_is_there() {
    let mut control = Control::default();
    let mut now = Duration::from_secs(100);
    control.on_begin(now, 4096);
    now += 3 * REST;
    assert_ne!(control.ask(now, Class::Upload, 1, 0.0), Verdict::Free);
    now += STANDS_STILL;
    assert_eq!(control.ask(now, Class::Upload, 1, 0.0), Verdict::Free, "it stands still");
}

/// What a class had under pressure is gone with the pressure.
#[test]
fn credit_is_not_kept() {
    let mut host = Host::new();
    host.run(Duration::from_secs(1));
    host.control.rate = RATE_MAX;
    host.run(2 * WINDOW);
    host.control.rate = RATE_MIN;
    host.run(2 * WINDOW);
    let left = host.control.credit[Class::Upload.index()];
    assert!(left <= RATE_MIN * WINDOW.as_secs_f64(), "{left}");
}

#[test]
fn what_nothing_presses_has_its_share_beside_what_is_pressed() {
    let [upload, copy] = shared_out([0.9, 0.0]);
    assert!(copy > upload / 20, "{upload} and {copy}");
}

#[test]
fn what_began_beside_background_work_is_in_no_baseline() {
    let mut host = Host::new();
    host.run(Duration::from_secs(5));
    while !host.control.window.paused {
        host.run(STEP);
    }
    let sample = Sample { kind: RequestKind::Write, bytes: 4096, depth: 32, took: 4 * WINDOW };
    let before = host.control.baseline.of(&sample).expect("known for long");
    host.control.on_begin(host.now, 4096);
    host.control.on_end(host.now, &sample);
    host.run(2 * WINDOW);
    let after = host.control.baseline.of(&sample).expect("as before");
    assert!(after < 1.3 * before, "{after} after {before}");
}

#[test]
fn a_spike_is_forgotten_once_clients_are_calm() {
    let mut host = Host::new();
    host.run(Duration::from_secs(5));
    let usual = host.usual;
    for _ in 0..2 {
        host.usual = usual * 8;
        host.run(10 * WINDOW);
        host.usual = usual;
        host.run(Duration::from_secs(20));
    }
    let found = host.run(Duration::from_secs(20));
    assert!(found.rate > RATE_MIN, "what clients do not feel is used: {found:?}");
}

/// Whether background work is free so long after the last of some requests, which came with these pauses.
fn is_free_after(pauses: &[u64], silence: u64) -> bool {
    let mut control = Control::default();
    let mut now = Duration::from_secs(100);
    let mut ask = |pause: u64| {
        now += Duration::from_millis(pause);
        control.on_begin(now, 4096);
        control.on_abandoned(4096);
    };
    ask(0);
    pauses.iter().for_each(|pause| ask(*pause));
    now += Duration::from_millis(silence);
    control.ask(now, Class::Upload, 1, 0.0) == Verdict::Free
}

#[test]
fn a_client_that_made_no_pauses_has_ended_sooner_than_one_that_did() {
    assert!(!is_free_after(&[1; 100], 50));
    assert!(is_free_after(&[1; 100], 70), "a burst");
    assert!(!is_free_after(&[1, 1, 30, 1, 1], 110) && is_free_after(&[1, 1, 30, 1, 1], 130));
    assert!(!is_free_after(&[100, 1, 1], 290) && is_free_after(&[100, 1, 1], 310));
    assert!(is_free_after(&[400, 1, 1], 70), "that was a rest");
    let forgotten: Vec<u64> = [200].into_iter().chain([1; 10_100]).collect();
    assert!(is_free_after(&forgotten, 70));
    assert!(!is_free_after(&forgotten[..4000], 290), "it is remembered for a while");
}

/// A request may take longer than the silence after which a client counts as away.
#[test]
fn a_client_that_was_answered_just_now_is_there() {
    let mut control = Control::default();
    let mut now = Duration::from_secs(100);
    let took = 2 * REST;
    for _ in 0..20 {
        control.on_begin(now, 4096);
        now += took;
        let sample = Sample { kind: RequestKind::Sync, bytes: 4096, depth: 1, took };
        control.on_end(now, &sample);
        assert_ne!(control.ask(now, Class::Upload, 1, 0.0), Verdict::Free);
    }
    now += REST;
    assert_eq!(control.ask(now, Class::Upload, 1, 0.0), Verdict::Free, "by now it is away");
}
