package main

import "github.com/spf13/cobra"

// commands returns all commands, in the order of the help.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.serveCommand(),
		a.stdioCommand(),
		a.validateCommand(),
		a.serversCommand(),
		a.catalogCommand(),
		a.toolsCommand(),
		a.psCommand(),
		a.topCommand(),
		a.logsCommand(),
		a.stopCommand(),
		a.doctorCommand(),
		a.demoCommand(),
		a.benchCommand(),
		a.evalCommand(),
		a.explainCommand(),
		a.tokenCommand(),
		a.versionCommand(),
	}
}
