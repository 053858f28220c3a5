use super::*;
use crate::format::run::DeviceIdentity;

/// A table of one set with four places.
const SMALL: Geometry = Geometry { rows: 4, columns: 1 };

fn address(device: u8, run: u64) -> RunAddress {
    RunAddress { device: DeviceIdentity([device; 32]), run }
}

fn state() -> State {
    State::new(SMALL, 1 << 40, None)
}

/// Fills a run of so many blocks, all with the same check.
fn fill(state: &mut State, address: &RunAddress, checks: &[u32]) -> Place {
    let filling = state.begin_fill(address).expect("it is wanted");
    let place = filling.at.place;
    state.end_fill(&filling.pin, Some(checks));
    place
}

/// Whether a run is there.
fn has(state: &mut State, address: &RunAddress) -> bool {
    let reading = state.begin_read(For::Client, address, 0, None);
    if let Some(reading) = &reading {
        state.end_read(&reading.pin, For::Client, Outcome::Good);
    }
    reading.is_some()
}

#[test]
fn blocks_are_there_once_their_fill_ended_and_by_their_address_only() {
    let mut state = state();
    let filling = state.begin_fill(&address(1, 5)).unwrap();
    assert_eq!((filling.at.run, filling.number, filling.wait.is_some()), (1, 1 << 40, false));
    assert!(!has(&mut state, &address(1, 5)), "it is being written");
    assert!(state.begin_fill(&address(1, 5)).is_none(), "once is enough");
    state.end_fill(&filling.pin, Some(&[7, 8, 9]));
    assert!(state.begin_fill(&address(1, 5)).is_none(), "it is there");
    let reading = state.begin_read(For::Client, &address(1, 5), 1, Some(2)).unwrap();
    assert_eq!((reading.first, &reading.checks[..]), (1, &[8, 9][..]));
    state.end_read(&reading.pin, For::Client, Outcome::Good);
    assert!(
        state.begin_read(For::Client, &address(1, 5), 1, Some(3)).is_none(),
        "the frame is shorter"
    );
    let all = state.begin_read(For::Client, &address(1, 5), 0, None).unwrap();
    assert_eq!(all.checks[..], [7, 8, 9]);
    state.end_read(&all.pin, For::Client, Outcome::Good);
    for other in [address(2, 5), address(1, 4), address(1, 9)] {
        assert!(!has(&mut state, &other));
    }
    assert_eq!((state.blocks, state.is_idle()), (3, true));
}

#[test]
fn a_fill_that_came_to_nothing_can_be_tried_again() {
    let mut state = state();
    let filling = state.begin_fill(&address(1, 0)).unwrap();
    state.end_fill(&filling.pin, None);
    assert!(!has(&mut state, &address(1, 0)) && state.is_idle());
    let again = state.begin_fill(&address(1, 0)).unwrap();
    assert!(again.number > filling.number, "no number is given twice");
    state.end_fill(&again.pin, Some(&[1]));
    assert!(has(&mut state, &address(1, 0)));
}

#[test]
fn a_place_is_written_once_nobody_reads_what_was_there() {
    let mut state = state();
    let old: Vec<_> = (0..4).map(|band| address(1, band * 4)).collect();
    let places: Vec<_> = old.iter().map(|old| fill(&mut state, old, &[1])).collect();
    let readings: Vec<_> =
        old.iter().map(|old| state.begin_read(For::Client, old, 0, None).unwrap()).collect();
    let filling = state.begin_fill(&address(2, 0)).unwrap();
    let at = places.iter().position(|place| *place == filling.at.place).unwrap();
    let mut wait = filling.wait.expect("somebody reads there");
    assert!(!has(&mut state, &old[at]), "it is evicted");
    // Another run of the same band waits as well.
    let beside = state.begin_fill(&address(2, 1)).unwrap();
    let mut beside_waits = beside.wait.expect("somebody reads there");
    for (number, reading) in readings.iter().enumerate() {
        if number != at {
            state.end_read(&reading.pin, For::Client, Outcome::Good);
        }
    }
    assert!(wait.try_recv().is_err() && beside_waits.try_recv().is_err());
    // What was read there is not what was to be read: the new band has nothing to do with it.
    state.end_read(&readings[at].pin, For::Client, Outcome::Damaged);
    assert!(wait.try_recv().is_ok() && beside_waits.try_recv().is_ok());
    state.end_fill(&filling.pin, Some(&[2]));
    state.end_fill(&beside.pin, Some(&[3, 4]));
    assert!(has(&mut state, &address(2, 0)) && has(&mut state, &address(2, 1)));
    assert!(state.is_idle());
    assert_eq!((state.blocks, state.counts.evictions), (3 + 3, 1));
}

#[test]
fn a_fill_whose_place_was_taken_meanwhile_is_not_there() {
    let mut state = state();
    let slow = state.begin_fill(&address(1, 0)).unwrap();
    let mut later = Vec::new();
    let taker = (1..100).find_map(|band| {
        let filling = state.begin_fill(&address(1, band * 4)).unwrap();
        if filling.at.place == slow.at.place {
            return Some(filling);
        }
        later.push(filling);
        None
    });
    let mut taker = taker.expect("the place goes to somebody");
    assert!(taker.wait.as_mut().unwrap().try_recv().is_err());
    state.end_fill(&slow.pin, Some(&[1]));
    assert!(taker.wait.unwrap().try_recv().is_ok());
    state.end_fill(&taker.pin, Some(&[2]));
    assert!(!has(&mut state, &address(1, 0)));
    for filling in later {
        state.end_fill(&filling.pin, None);
    }
    assert!(state.is_idle());
}

#[test]
fn what_is_not_what_it_should_be_is_dropped_with_its_run_alone() {
    let mut state = state();
    fill(&mut state, &address(1, 0), &[1, 2]);
    fill(&mut state, &address(1, 1), &[3]);
    let reading = state.begin_read(For::Client, &address(1, 0), 1, Some(1)).unwrap();
    state.end_read(&reading.pin, For::Client, Outcome::Damaged);
    assert!(!has(&mut state, &address(1, 0)) && has(&mut state, &address(1, 1)));
    assert_eq!((state.counts.damaged, state.blocks), (1, 1));
    fill(&mut state, &address(1, 0), &[1, 2]);
    assert!(has(&mut state, &address(1, 0)));
}

#[test]
fn devices_are_forgotten_with_their_last_band() {
    let mut state = state();
    for device in 0..200 {
        fill(&mut state, &address(device, 0), &[1]);
        assert!(has(&mut state, &address(device, 0)));
        assert!(state.devices.all().count() <= 4);
    }
}

fn found(device: u8, run: u64, row: u32, fill: u64) -> FoundRun {
    let address = address(device, run);
    let at = RunPlace { place: Place { row, column: 0 }, run: address.in_band() };
    FoundRun { at, address, fill, checks: vec![u32::from(device); 2] }
}

#[test]
fn a_place_found_after_a_crash_belongs_to_its_newest_fill() {
    let mut state = State::new(SMALL, 1 << 40, Some(Scan::new(1)));
    assert!(!has(&mut state, &address(2, 0)) && state.begin_fill(&address(9, 0)).is_none());
    let runs = vec![
        // Two runs of an older band in row 0, one of a newer.
        found(1, 0, 0, 10),
        found(1, 1, 0, 11),
        found(2, 2, 0, 12),
        // The same band in two rows: what was filled last counts.
        found(3, 0, 1, 20),
        found(3, 0, 2, 21),
        // An older run of the band that is there now.
        found(4, 0, 3, 5),
        found(4, 1, 3, 30),
    ];
    state.restore_set(0, runs);
    assert!(state.scan.is_none(), "all is known");
    for gone in [address(1, 0), address(1, 1)] {
        assert!(!has(&mut state, &gone), "{gone:?}");
    }
    let reading = state.begin_read(For::Client, &address(3, 0), 0, None).unwrap();
    assert_eq!((reading.at.place.row, &reading.checks[..]), (2, &[3, 3][..]));
    state.end_read(&reading.pin, For::Client, Outcome::Good);
    for there in [address(2, 2), address(4, 0), address(4, 1)] {
        assert!(has(&mut state, &there), "{there:?}");
    }
    assert_eq!(state.blocks, 8);
}

#[test]
fn nothing_is_looked_up_once_the_cache_is_left_out() {
    let mut state = state();
    fill(&mut state, &address(1, 0), &[1]);
    assert!(state.leave_out("its disk failed") && !state.leave_out("again"));
    assert!(!has(&mut state, &address(1, 0)) && state.begin_fill(&address(2, 0)).is_none());
    assert_eq!(state.ended, Some(Ended::LeftOut("its disk failed".to_owned())));
}

/// A place is taken again while the fill that took it before still waits.
#[test]
fn a_fill_that_waits_never_waits_for_itself() {
    let mut state = state();
    for band in 0..4 {
        fill(&mut state, &address(1, band * 4), &[1]);
    }
    let readings: Vec<_> = (0..4)
        .map(|band| state.begin_read(For::Client, &address(1, band * 4), 0, None).unwrap())
        .collect();
    let mut fillings: Vec<_> =
        (0..20).filter_map(|band| state.begin_fill(&address(2, band * 4))).collect();
    for reading in &readings {
        state.end_read(&reading.pin, For::Client, Outcome::Good);
    }
    // Each is woken, or told that its place is somebody else's, once those before it ended.
    let mut steps = 0;
    while !fillings.is_empty() {
        steps += 1;
        assert!(steps < 100, "{} fills wait for ever", fillings.len());
        let mut left = Vec::new();
        for mut filling in fillings {
            match filling.wait.as_mut().map(oneshot::Receiver::try_recv) {
                Some(Err(oneshot::error::TryRecvError::Empty)) => left.push(filling),
                Some(Err(oneshot::error::TryRecvError::Closed)) => {
                    state.end_fill(&filling.pin, None)
                }
                Some(Ok(())) | None => state.end_fill(&filling.pin, Some(&[2])),
            }
        }
        fillings = left;
    }
    assert!(state.is_idle());
}

/// What a cache of 1 TiB holds in memory: every place taken, and as much evicted, so that the queues remember it.
///
///     RUSTFLAGS="--cfg weir_measure" cargo test --release -p weir-cache --lib one_tebibyte -- --nocapture
#[cfg(weir_measure)]
#[test]
fn one_tebibyte_of_cache_takes_so_much_memory() {
    const LIMIT: u64 = (12 << 30) / 10;
    // Objects of 8 MiB, as log volumes write them.
    const BANDS_OF_OBJECT: u64 = 32;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages: u64 =
            statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
        pages * 4096
    };
    let geometry = Geometry::of_bands((1 << 40) / crate::geometry::BAND_BYTES);
    let before = resident();
    let mut state = State::new(geometry, 1 << 40, None);
    let mut objects = 0_u64;
    while state.counts.evictions < geometry.bands() {
        let mut identity = [7; 32];
        identity[24..].copy_from_slice(&objects.to_le_bytes());
        objects += 1;
        for band in 0..BANDS_OF_OBJECT {
            let address =
                RunAddress { device: DeviceIdentity(identity), run: band * u64::from(BAND_RUNS) };
            fill(&mut state, &address, &[7; RUN_BLOCKS as usize]);
        }
    }
    let taken = state.table.slots().bands().count() as u64;
    let bytes = resident() - before;
    println!(
        "{taken} of {} bands taken by {objects} objects: {} MiB, {} bytes a band",
        geometry.bands(),
        bytes >> 20,
        bytes / geometry.bands()
    );
    assert!(taken * 100 >= geometry.bands() * 99, "{taken} bands are taken");
    assert!(bytes <= LIMIT, "{bytes} bytes");
}

#[test]
fn what_is_copied_does_not_count_as_used() {
    let mut state = state();
    for band in 0..4 {
        fill(&mut state, &address(1, band * 4), &[7]);
    }
    // Whatever is read in bulk, the band that was used least goes.
    for _ in 0..100 {
        let reading = state.begin_read(For::Copy, &address(1, 0), 0, None).expect("there");
        state.end_read(&reading.pin, For::Copy, Outcome::Good);
    }
    for band in 1..4 {
        assert!(has(&mut state, &address(1, band * 4)));
    }
    assert_eq!((state.counts.copied, state.counts.hits), (100, 3));
    fill(&mut state, &address(1, 16), &[7]);
    assert!(!state.has(&address(1, 0)), "it was not used");
}
