# A person's word for this exact action, and still good. It answers a hold; it never undoes a deny,
# a limit or a stop.
package vedette.approval

ok if {
	is_array(input.context.approvals)
	some given in input.context.approvals
	given.action_digest == input.action.digest
	is_string(input.action.digest)
	input.action.digest != ""
	is_number(input.now)
	is_string(given.by)
	not_empty(given.by)
	is_number(given.until)
	given.until > input.now
}

not_empty(text) if text != ""
