exports.handler = async () => ({ word: process.env.WORD });
