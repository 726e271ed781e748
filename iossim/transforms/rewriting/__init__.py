"""Graph substitutions: rules as data, proved before they are used, and searched together with the schedule."""
