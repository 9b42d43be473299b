"""KFP components: one folder a stage, each a signature and a call into `burnish.stages`."""
