"""Services of a demand trace lend GPUs to the jobs of a job trace; what each rule lends, gains and loses."""
