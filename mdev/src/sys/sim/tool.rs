//! The programs of a simulated host.

use nix::errno::Errno;

use crate::sys::{ToolId, ToolOutput};

use super::{
    MODULES, SimKernel,
    fault::{Call, Verdict},
    gim, nvidia, pci, state, tree,
};

impl SimKernel {
    /// Runs a program.
    pub(super) fn run(&self, tool: ToolId, args: &[String]) -> Result<ToolOutput, Errno> {
        let command = [tool.to_string()].iter().chain(args).cloned().collect::<Vec<_>>().join(" ");
        self.core.state().commands.push(command.clone());
        self.core.faults.note_run(&command);
        match self.core.faults.meet(Call::Run, &command)? {
            Verdict::Proceed => {}
            Verdict::Pretend => {
                return Ok(ToolOutput { status: Some(0), output: String::new() });
            }
        }
        match tool {
            ToolId::Modprobe => Ok(self.modprobe(args)),
            ToolId::NvidiaSmi | ToolId::SriovManage => nvidia::run(&self.core, tool, args),
        }
    }

    fn modprobe(&self, args: &[String]) -> ToolOutput {
        if let Some(answer) = gim::modprobe(&self.core, args) {
            self.core.events.settle();
            return answer;
        }
        let answer = |status, output: String| ToolOutput { status: Some(status), output };
        let (options, modules): (Vec<_>, Vec<_>) =
            args.iter().partition(|arg| arg.starts_with('-') && arg.len() > 1);
        if options.iter().any(|option| ["-r", "--remove"].contains(&option.as_str())) {
            return answer(1, "modprobe: FATAL: modules are not unloaded here\n".into());
        }
        let Some(module) = modules.first().map(|module| tree::module_name(module)) else {
            return answer(1, "modprobe: ERROR: missing parameters. See -h.\n".into());
        };
        let (known, found) = {
            let mut state = self.core.state();
            let named = |d: &state::Driver| tree::module_name(&d.name) == module;
            let found = state.drivers.iter().position(named);
            let driver = found.and_then(|index| state.drivers.get_mut(index));
            let is_new = driver.is_some_and(|driver| !std::mem::replace(&mut driver.loaded, true));
            (found.is_some() || MODULES.contains(&module.as_str()), found.filter(|_| is_new))
        };
        if !known {
            let text = format!("modprobe: FATAL: Module {module} not found in directory.\n");
            return answer(1, text);
        }
        pci::attach_waiting(&self.core, found);
        self.core.events.settle();
        answer(0, String::new())
    }
}
