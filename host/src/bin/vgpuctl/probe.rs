//! `probe`: what VFIO says of a vGPU.

use serde::Serialize;
use serde_json::{Map, Value};
use vgpu_host_api::wire::RegionFacts;

use crate::{
    failure::Result,
    output::{Output, facts, size, table},
    service::Service,
    show::{rest, take},
};

#[derive(Serialize)]
struct Report {
    interface: String,
    can_reset: bool,
    reset: String,
    dma_map: bool,
    migration: Vec<String>,
    pci_ids: Option<String>,
    regions: Vec<Region>,
    interrupts: Vec<Interrupt>,
    /// What a newer service says beyond that.
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Serialize)]
struct Region {
    index: u32,
    size: u64,
    readable: bool,
    flags: u32,
}

#[derive(Serialize)]
struct Interrupt {
    index: u32,
    count: u32,
}

/// `vgpuctl probe`
pub(crate) async fn run(service: &Service, output: &Output, vgpu: &str) -> Result<()> {
    let mut held = service.said(service.vgpu(vgpu).await?.probe().await)?;
    let regions: Vec<RegionFacts> = take(&mut held, "Regions")?;
    let interrupts: Vec<(u32, u32)> = take(&mut held, "Interrupts")?;
    let report = Report {
        interface: take(&mut held, "Interface")?,
        can_reset: take(&mut held, "CanReset")?,
        reset: take(&mut held, "Reset")?,
        dma_map: take(&mut held, "DmaMap")?,
        migration: take(&mut held, "Migration")?,
        pci_ids: crate::json::some(take(&mut held, "PciIds")?),
        regions: regions
            .into_iter()
            .map(|(index, size, readable, flags)| Region {
                index,
                size,
                readable: readable == 1,
                flags,
            })
            .collect(),
        interrupts: interrupts
            .into_iter()
            .map(|(index, count)| Interrupt { index, count })
            .collect(),
        more: rest(&held),
    };
    output.print(&report, Report::text)
}

impl Report {
    fn text(&self) -> String {
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let reset = match (self.can_reset, self.reset.as_str()) {
            (false, _) => "not supported".to_owned(),
            (true, outcome) => outcome.to_owned(),
        };
        let migration =
            if self.migration.is_empty() { "none".to_owned() } else { self.migration.join(", ") };
        let mut text = facts([
            ("Opened through", self.interface.clone()),
            ("PCI ids", self.pci_ids.clone().unwrap_or_default()),
            ("Reset", reset),
            ("DMA map", yes_no(self.dma_map)),
            ("Migration", migration),
        ]);
        if !self.regions.is_empty() {
            text.push('\n');
            let row = |region: &Region| {
                let flags = format!("{:#x}", region.flags);
                let read = if region.readable { yes_no(true) } else { String::new() };
                [region.index.to_string(), size(region.size), read, flags]
            };
            text.push_str(&table(
                [">REGION", ">SIZE", "READ", ">FLAGS"],
                self.regions.iter().map(row),
            ));
        }
        if !self.interrupts.is_empty() {
            text.push('\n');
            let row =
                |interrupt: &Interrupt| [interrupt.index.to_string(), interrupt.count.to_string()];
            text.push_str(&table([">INTERRUPT", ">COUNT"], self.interrupts.iter().map(row)));
        }
        text
    }
}
