//! What is made of the arguments: shell completions and the manual page.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::{
    args::Args,
    failure::{MEANINGS, Result},
    output::print,
};

/// `vgpuctl completions`
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "vgpuctl", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// `vgpuctl man`
pub(crate) fn man() -> Result<()> {
    let mut command = Args::command();
    command.build();
    let page = clap_mangen::Man::new(command.clone());
    let mut text = include_str!("vgpuctl.1.head").to_owned();
    let mut body = Vec::new();
    page.render_description_section(&mut body)?;
    page.render_options_section(&mut body)?;
    text.push_str(&String::from_utf8_lossy(&body));
    text.push_str(".SH COMMANDS\n");
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_command(&mut text, command);
    }
    text.push_str(".SH EXIT STATUS\n");
    for (code, meaning) in MEANINGS {
        let _ = writeln!(text, ".TP\n.B {code}\n{}", escape(meaning));
    }
    text.push_str(include_str!("vgpuctl.1.tail"));
    print(&text)
}

fn write_command(text: &mut String, command: &Command) {
    let arguments = command.get_positionals().filter(|argument| !argument.is_hide_set());
    let arguments: String =
        arguments.map(|argument| format!(" \\fI{}\\fR", escape(&shown(argument)))).collect();
    let options: Vec<&Arg> =
        command.get_opts().chain(flags(command)).filter(|option| !is_common(option)).collect();
    let more = if options.is_empty() { "" } else { " [\\fIoptions\\fR]" };
    let _ = writeln!(text, ".SS \"vgpuctl {}{arguments}{more}\"", escape(command.get_name()));
    let about = command.get_long_about().or(command.get_about());
    if let Some(about) = about {
        let about = about.to_string();
        let about = about.trim_end().trim_end_matches('.');
        let _ = writeln!(text, "{}.", escape(about).replace("\n\n", ".\n.PP\n"));
    }
    for option in options {
        let Some(long) = option.get_long() else {
            continue;
        };
        let value = match option.get_action().takes_values() {
            true => format!(" \\fI{}\\fR", escape(&shown(option))),
            false => String::new(),
        };
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, ".TP\n\\fB\\-\\-{}\\fR{value}\n{}", escape(long), escape(&help));
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|argument| argument.get_long().is_some() && !argument.get_action().takes_values())
}

/// Said once for all commands.
fn is_common(option: &Arg) -> bool {
    option.is_global_set() || option.get_id() == "help" || option.is_hide_set()
}

fn shown(argument: &Arg) -> String {
    let name = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let name = name.unwrap_or_else(|| argument.get_id().to_string().to_uppercase());
    let optional = argument.is_positional() && !argument.is_required_set();
    if optional { format!("[{name}]") } else { name }
}

/// Text for troff: hyphens as typed, and no line that starts a request.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| {
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
