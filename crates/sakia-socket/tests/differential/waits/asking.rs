//! The steps of a program that wait, or that change the entries of a set.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use sakia_socket::{EpollEvent, Events, Selection};
use sakia_testkit::loopback;

use super::program::{Interest, Line, Program};
use super::steps::{NOW, SETS, Step, Timeout, is_tcp};
use crate::world::{File, Operation, World};

impl<W: World> Program<'_, W> {
    pub fn control(
        &mut self,
        set: usize,
        operation: Operation,
        file: usize,
        events: Events,
        data: u64,
    ) -> Option<String> {
        let world = self.world;
        let event = EpollEvent { events, data };
        let (file_of, is_tcp) = match self.ends.get(file) {
            Some(end) => {
                let end = end.as_ref()?;
                (File::Socket(&end.socket), is_tcp(end.kind))
            }
            None => (File::Set(&self.sets[0]), false),
        };
        let result = world.control(&self.sets[set], operation, file_of, event);
        let behavior = events & (Events::EDGE | Events::ONE_SHOT);
        match (operation, result) {
            (_, Err(_)) => {}
            (Operation::Remove, Ok(())) => drop(self.entries.remove(&(set, file))),
            _ => drop(self.entries.insert((set, file), Interest { data, behavior, is_tcp })),
        }
        Some(format!("{result:?}"))
    }

    /// Returns true if the events of an entry depend on more than the state of its file.
    fn is_loose(&self, file: usize, interest: &Interest) -> bool {
        let is_edge = interest.behavior.contains(Events::EDGE);
        let is_set = file == SETS;
        is_edge && (self.has_memory || interest.is_tcp || is_set) || is_set && self.is_loose_set(0)
    }

    fn is_loose_set(&self, set: usize) -> bool {
        self.entries.iter().any(|(&(of, file), interest)| {
            let is_one_shot = interest.behavior.contains(Events::ONE_SHOT);
            of == set && (self.is_loose(file, interest) || self.has_memory && is_one_shot)
        })
    }

    /// Waits for `set`, in as many waits as all of its entries need.
    pub fn wait(
        &mut self,
        set: usize,
        max: usize,
        is_once: bool,
        timeout: Timeout,
    ) -> Option<Line> {
        let entries: BTreeMap<u64, bool> = self
            .entries
            .iter()
            .filter(|((of, _), _)| *of == set)
            .map(|((_, file), interest)| (interest.data, self.is_loose(*file, interest)))
            .collect();
        let many = self.entries.keys().filter(|(of, _)| *of == set).count();
        let is_loose = self.is_loose_set(set) || entries.len() < many;
        let is_level = self.entries.values().all(|interest| interest.behavior.is_empty());
        let mut time = timeout.of();
        if time.is_none() {
            let files = [(File::Set(&self.sets[set]), Events::IN)];
            if !is_level || max == 0 || self.world.poll(&files, NOW, None)[0][0].is_empty() {
                time = NOW;
            }
        }
        // Otherwise the order would decide which of them report later.
        let is_once = is_once && is_level;
        let rounds = if is_once { 1 } else { many.div_ceil(max.max(1)).max(1) };
        let mut counts = Vec::new();
        let mut found: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for _ in 0..rounds {
            match self.world.wait(&self.sets[set], max, time) {
                Err(errno) => return Some((format!("{errno:?}"), false)),
                Ok(events) => {
                    assert!(events.len() <= max);
                    counts.push(events.len());
                    for EpollEvent { events, data } in events {
                        assert!(entries.contains_key(&data), "{data:x} is no entry");
                        found.entry(data).or_default().insert(events.0);
                    }
                }
            }
            if time.is_none() {
                time = NOW;
            }
        }
        found.retain(|data, _| entries.len() < many || !entries[data]);
        if is_once {
            found.clear();
        }
        let counts = if is_loose { Vec::new() } else { counts };
        Some((format!("{counts:?} {found:x?}"), entries.len() < many && is_loose))
    }

    pub fn poll(
        &mut self,
        entries: &[(usize, Events)],
        timeout: Timeout,
        between: &Option<Box<Step>>,
    ) -> Option<Line> {
        let world = self.world;
        let (numbers, wanted): (Vec<usize>, Vec<Events>) =
            entries.iter().copied().filter(|(file, _)| self.is_there(*file)).unzip();
        let answer = |found: Vec<Vec<Events>>| {
            let all = found.iter().map(|ready| ready.iter().map(|ready| format!("{:x}", ready.0)));
            all.map(Iterator::collect).collect()
        };
        self.waits(&numbers, timeout, between, |files, timeout, between| {
            let entries: Vec<_> = files.into_iter().zip(wanted.iter().copied()).collect();
            answer(world.poll(&entries, timeout, between))
        })
    }

    pub fn select(
        &mut self,
        entries: &[(usize, Selection)],
        timeout: Timeout,
        between: &Option<Box<Step>>,
    ) -> Option<Line> {
        let world = self.world;
        let (numbers, sets): (Vec<usize>, Vec<Selection>) =
            entries.iter().copied().filter(|(file, _)| self.is_there(*file)).unzip();
        let answer = |found: Vec<(usize, Vec<Selection>)>| {
            let all = found.iter().map(|(count, left)| {
                assert_eq!(left.iter().map(|left| left.count()).sum::<usize>(), *count);
                let one = |left: &Selection| {
                    let is = [left.readable, left.writable, left.exceptional];
                    let names = "rwx".chars().zip(is).filter(|(_, is)| *is);
                    names.map(|(name, _)| name).collect()
                };
                left.iter().map(one).collect()
            });
            all.collect()
        };
        self.waits(&numbers, timeout, between, |files, timeout, between| {
            let entries: Vec<_> = files.into_iter().zip(sets.iter().copied()).collect();
            answer(world.select(&entries, timeout, between))
        })
    }

    fn is_there(&self, file: usize) -> bool {
        self.ends.get(file).is_none_or(Option::is_some)
    }

    /// Makes two waits with the same entries if a deed is to be done between them, and otherwise one, or a
    /// second one without end if the first finds something.
    fn waits(
        &mut self,
        numbers: &[usize],
        timeout: Timeout,
        between: &Option<Box<Step>>,
        wait: impl Fn(Vec<File<'_, W>>, Option<Duration>, Option<&dyn Fn()>) -> Vec<Vec<String>>,
    ) -> Option<Line> {
        let is_loose: Vec<bool> =
            numbers.iter().map(|&file| file >= SETS && self.is_loose_set(file - SETS)).collect();
        let sets = Rc::clone(&self.sets);
        let sockets: Vec<Option<W::Socket>> = numbers
            .iter()
            .map(|&file| self.ends.get(file).and_then(Option::as_ref))
            .map(|end| end.map(|end| end.socket.clone()))
            .collect();
        let files = || {
            let files = numbers.iter().zip(&sockets).map(|(&file, socket)| match socket {
                Some(socket) => File::Socket(socket),
                None => File::Set(&sets[file - SETS]),
            });
            files.collect::<Vec<_>>()
        };
        let said = RefCell::new(None);
        let this = RefCell::new(self);
        let deed = || {
            let Some(step) = between else { return };
            said.replace(this.borrow_mut().deed(step));
            this.borrow_mut().world.flush();
            loopback::settle();
        };
        let deed: Option<&dyn Fn()> = if between.is_some() { Some(&deed) } else { None };
        let mut found = wait(files(), timeout.of().or(NOW), deed);
        let is_ready = found.iter().flatten().any(|ready| !ready.is_empty() && ready != "0");
        if matches!(timeout, Timeout::Endless) && deed.is_none() && is_ready {
            found.extend(wait(files(), None, None));
        }
        for ready in &mut found {
            // Memory may make a set ready.
            let loose = ready.iter_mut().zip(&is_loose).filter(|(_, is_loose)| **is_loose);
            loose.for_each(|(ready, _)| ready.clear());
        }
        Some((format!("{found:?} {:?}", said.take()), false))
    }
}
