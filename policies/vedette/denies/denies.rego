# Denies that stand whatever else is proven. Add yours here, or as further files of this package:
#
#	deny contains "denies.at_night" if input.action.tool == "mail.file"
#
# They can only take away: leaving this file out proves nothing, so nothing is permitted.
package vedette.denies

deny contains "denies.agent" if input.subject.agent in data.denies.agents

deny contains "denies.tool" if input.action.tool in data.denies.tools

# The proof. Last in the file, so that no part of a cut file proves anything.
ok if {
	data.denies.complete == true
	is_array(data.denies.agents)
	is_array(data.denies.tools)
	count(deny) == 0
}
