//! The settings of a runtime as [`inspect`](crate::inspect) lists them.

use std::sync::Arc;

use sakia_driver::{Bypass, Choice, LateChoice};

use crate::inspect::{Configured, Setting};
use crate::runtime::Builder;

/// The settings of a runtime, and the values that the kernel granted to its first thread, once that has its
/// backend.
#[derive(Debug)]
pub(crate) struct Configuration {
    builder: Arc<Builder>,
    choice: LateChoice,
}

impl Configuration {
    pub(crate) fn new(builder: Arc<Builder>, choice: &LateChoice) -> Self {
        Self { builder, choice: Arc::clone(choice) }
    }
}

impl Configured for Configuration {
    fn settings(&self) -> Vec<Setting> {
        settings(&self.builder, self.choice.get())
    }
}

fn settings(builder: &Builder, choice: Option<&Choice>) -> Vec<Setting> {
    let report = choice.and_then(Choice::report);
    let backend = choice.map_or_else(|| "not set up yet".to_owned(), Choice::to_string);
    let set = |name, value: String, granted: Option<String>| {
        let source = builder.source_of(name);
        Setting { name, value, source, granted }
    };
    let (sq_entries, cq_entries) = builder.ring_builder().wanted_entries();
    let asked = builder
        .policy()
        .map_or_else(|error| error.to_string(), |policy| format!("{policy:?}").to_lowercase());
    let bypass = match builder.bypass_rules() {
        Bypass::Never => "never",
        Bypass::Rules(_) => "rules",
    };
    let blocking_timeout =
        builder.longest_blocking().map_or("none".to_owned(), |longest| format!("{longest:?}"));
    let mut settings = vec![
        set("backend", asked, Some(backend)),
        set("threads", builder.thread_count().to_string(), None),
        set("bypass", bypass.to_owned(), None),
        set("streams", builder.streams_in_force().name().to_owned(), None),
        set("spin", format!("{:?}", builder.spin_time()), None),
        set("blocking_timeout", blocking_timeout, None),
        set("virtual_time", builder.virtual_time.to_string(), None),
        set("inspection", builder.is_inspected().to_string(), None),
        set("latencies", builder.measures_latencies().to_string(), None),
        set("warnings", builder.warnings_in_force().to_string(), None),
    ];
    let ring = |name, value: String, granted: Option<String>| {
        let source = builder.source_of("ring");
        Setting { name, value, source, granted }
    };
    let granted = |number: Option<u32>| number.map(|number| number.to_string());
    settings.push(ring(
        "ring.sq_entries",
        sq_entries.to_string(),
        granted(report.map(|report| report.sq_entries)),
    ));
    settings.push(ring(
        "ring.cq_entries",
        cq_entries.to_string(),
        granted(report.map(|report| report.cq_entries)),
    ));
    if let Some(report) = report {
        let extras = [
            ("ring.registered_fd", report.registered_fd),
            ("ring.registered_wait", report.registered_wait),
        ];
        for (name, is_granted) in extras {
            let granted = if is_granted { "granted" } else { "refused, or not asked for" };
            settings.push(ring(name, String::new(), Some(granted.to_owned())));
        }
        let flags = report.setup_flag_names().join(" ");
        settings.push(ring("ring.flags", String::new(), Some(flags)));
        for step in &report.steps {
            settings.push(ring("ring.step", String::new(), Some(step.to_string())));
        }
    }
    settings
}
